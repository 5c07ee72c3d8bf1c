"""The environments of a configuration, by name."""

import re
from typing import Annotated

from pydantic import Field

from nbrl.tasks.environments.environment import WorldEnvironment
from nbrl.tasks.environments.kinds.gym import GymEnvironment
from nbrl.tasks.environments.kinds.openenv import OpenEnvEnvironment
from nbrl.tasks.environments.kinds.own import OwnEnvironment
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment, HubEnvironment
from nbrl.tasks.environments.kinds.recorded import RecordedEnvironment
from nbrl.tasks.environments.kinds.verifiers import VerifiersEnvironment

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
AnyEnvironment = (
    WorldEnvironment
    | FilesEnvironment
    | GymEnvironment
    | OwnEnvironment
    | HubEnvironment
    | VerifiersEnvironment
    | OpenEnvEnvironment
    | RecordedEnvironment
)
EnvironmentSettings = Annotated[AnyEnvironment, Field(discriminator="kind")]
Environments = dict[str, EnvironmentSettings]


def unusable(name: object) -> str:
    """Return why an environment cannot have this name; empty if it can."""
    if not isinstance(name, str):
        return (
            f"{name!r} is no name of an environment, as YAML reads no, yes, on, off, null and numbers without quotes; put the "
            "name in quotes"
        )
    if not NAME.fullmatch(name):
        return f"an environment cannot be named {name!r}: take up to 40 letters, digits, '_' and '-', a letter first"
    return ""
