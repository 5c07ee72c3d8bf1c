"""On a GPU that both share, engines start before the learner: they take their share of the memory that is free then."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbrl.infra.engine.settings import MEMORY_SAVER, ROUTES
from nbrl.infra.home import Home
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.services import start
from tests.tasks.synced import RUN


@pytest.mark.parametrize("shared", ["", "0"])
def test_a_learner_that_shares_gpus_starts_after_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    happened: list[str] = []

    async def engines(*_: object) -> Any:
        happened.append("engines begin")
        for _ in range(5):
            await asyncio.sleep(0)
        happened.append("engines serve")
        return SimpleNamespace(check_health=nothing)

    async def nothing(*_: object, **__: object) -> Any:
        return None

    async def pools(*_: object, **__: object) -> Any:
        return [None]

    def learner(*_: object) -> Any:
        happened.append("learner begins")
        return SimpleNamespace(ready=nothing, stop=nothing, end=lambda: None)

    plan = SimpleNamespace(shared_gpus=shared, settings=None)
    placed = SimpleNamespace(whole=None, texts=None)
    for name, value in {
        "_scratch": lambda *_: tmp_path,
        "fetch": lambda *_: tmp_path,
        "newest_policy": lambda *_: SimpleNamespace(checkpoint="", updates=0),
        "policies_in_use": lambda *_: [],
        "_delivery": lambda *_: SimpleNamespace(start=lambda: None),
        "_ray": nothing,
        "place": lambda *_: placed,
        "adapter_room": lambda *_: None,
        "_engine_plan": lambda *_: plan,
        "_learner": learner,
        "SglangFleet": SimpleNamespace(start=engines),
        "_runners": pools,
        "ray_cluster": SimpleNamespace(check=lambda: None),
        "_weight_source": lambda *_: None,
    }.items():
        monkeypatch.setattr(start, name, value)
    progress = SimpleNamespace(begin=lambda text: None, say=lambda text: None, done=lambda *_: None)
    config = load("tiny-cpu", [f"home={tmp_path}", f"storage.root={tmp_path}/root"])

    async def begun() -> None:
        async with start.training_services(config, RUN, progress):  # type: ignore[arg-type]
            pass

    monkeypatch.setattr(start, "_shown", lambda progress, name, work: work)
    asyncio.run(begun())
    first = (
        ["engines begin", "engines serve", "learner begins"] if shared else ["learner begins", "engines begin", "engines serve"]
    )
    assert happened == first


@pytest.mark.parametrize(("shared", "replays"), [(True, False), (True, True), (False, True)])
def test_engines_get_the_flags_that_a_training_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, replays: bool
) -> None:
    cluster = SimpleNamespace(offered=lambda _: 1.0 if shared else 8.0, machines=lambda: 1)
    monkeypatch.setattr(start, "ray_cluster", cluster)
    config = load("tiny-cpu", ["engine.device=cuda", "update.device=cuda", f"update.router_replay={str(replays).lower()}"])
    plan = start._engine_plan(config, Home(tmp_path), None)
    assert plan.settings.extra_args == {**({MEMORY_SAVER: ""} if shared else {}), **({ROUTES: ""} if replays else {})}
    assert bool(plan.shared_gpus) == shared
