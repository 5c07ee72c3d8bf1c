"""The environments of a run: what kinds there are, and how their names and settings stand in a recipe."""

from typing import Annotated

from pydantic import Field, StringConstraints

from nbrl.tasks.environments.kinds.generated_world import WorldEnvironment
from nbrl.tasks.environments.kinds.gym import GymEnvironment
from nbrl.tasks.environments.kinds.hub import HubEnvironment
from nbrl.tasks.environments.kinds.own import OwnEnvironment
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$")]
AnyEnvironment = WorldEnvironment | FilesEnvironment | GymEnvironment | OwnEnvironment | HubEnvironment
EnvironmentSettings = Annotated[AnyEnvironment, Field(discriminator="kind")]
Environments = dict[Name, EnvironmentSettings]
