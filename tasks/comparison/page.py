"""The address of MLflow's page that compares the same runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from nbrl.infra.errors import shortened
from nbrl.infra.home import Home
from nbrl.infra.tracking import Tracking
from nbrl.infra.tracking_address import SERVERS, check_reachable, missing_database
from nbrl.tasks.comparison.side import Side
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.tracking.evaluations import EVALUATION
from nbrl.tasks.tracking.facts import identity


class Page(BaseModel):
    """`address` is empty where there is none, and `why` says why. It begins with `/` where `nbrl ui` says the rest of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str = ""
    why: str = ""


def page(sides: Sequence[Side]) -> Page:
    """The page of all of them that MLflow has. Nothing is raised: the comparison does not depend on MLflow."""
    try:
        return _page(sides)
    except Exception as error:
        return Page(why=f"MLflow cannot be asked: {shortened(error)}")


def _page(sides: Sequence[Side]) -> Page:
    configs = [side.config for side in sides]
    places = {config.tracking.uri or str(Path(config.home, "mlflow").absolute()) for config in configs}
    if len(places) != 1:
        return Page(why="not all of them are in one MLflow")
    config, (place,) = configs[0], places
    if (missing := missing_database(config.tracking.uri, Home(config.home))) is not None:
        return Page(why=f"there is no MLflow database in {missing.parent}")
    check_reachable(place)
    tracking = Tracking(config.tracking, Home(config.home))
    experiment = tracking.client.get_experiment_by_name(config.tracking.experiment)
    found = list(dict.fromkeys(_id(tracking, side) for side in sides)) if experiment is not None else [""]
    if experiment is None or "" in found:
        return Page(why="MLflow does not have all of them; `nbrl track NAME` delivers one")
    if len(found) < 2:
        return Page(why="they are one run in MLflow")
    both = f"runs={quote(_list(found))}&experiments={quote(_list([experiment.experiment_id]))}"
    asked = f"{both}&workflowType=machine_learning"  # the mode for training: MLflow opens in that for agents
    return Page(address=f"{place.rstrip('/') if place.startswith(SERVERS) else ''}/#/compare-runs?{asked}")


def _id(tracking: Tracking, side: Side) -> str:
    if side.run.kind == RUNS:
        return tracking.id_of(side.run.name, identity(side.run))
    return tracking.id_of(side.run.name, EVALUATION)


def _list(names: Sequence[str]) -> str:
    return json.dumps(list(names), separators=(",", ":"))
