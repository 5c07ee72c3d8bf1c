"""Keys that are constants now, or have another name, answer with what to write instead."""

import pytest

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import dotted
from nbrl.tasks.runs.recipes import INSTEAD, check_acting, from_settings, load

SIMULATED = "rollout.tools.search={engine: simulated, model: {base_url: 'http://a/v1', name: m}}"
OF_PREPARE = ("replies", "filter", "rate.", "difficulty.")


@pytest.mark.parametrize("key", [key for key in INSTEAD if not key.startswith(OF_PREPARE)])
def test_a_key_of_a_run(key: str) -> None:
    first = [SIMULATED, "rollout.tools.default=[search]"] if key.startswith("rollout.tools.search.") else []
    with pytest.raises(ConfigError) as refused:
        load("tiny-cpu", [*first, f"{key}=1"])
    assert str(refused.value) == f"unknown key {key!r} in --set {key}=1; {INSTEAD[key]}"


@pytest.mark.parametrize("key", [key for key in INSTEAD if key.startswith(OF_PREPARE)])
def test_a_key_of_a_preparation(key: str) -> None:
    given = {
        "sources": [{"name": "a", "path": "a.jsonl", "licence": "MIT"}],
        "rate": {"base_url": "http://a/v1", "name": "m"},
        "difficulty": {"evaluation": "e"},
    }
    with pytest.raises(ConfigError) as refused:
        from_settings(PrepareSettings, given, "recipe.yaml", [f"{key}=1"])
    assert str(refused.value).endswith(f"; {INSTEAD[key]}")


def test_none_of_them_is_a_key() -> None:
    assert not {*INSTEAD} & {*dotted(RunConfig), *dotted(PrepareSettings)}


@pytest.mark.parametrize(
    "override", ["sandbox.warm=3", "sandbox={warm: 3}", "sandbox={memory_mb: 600, warm: 3}", "update={lr: 1}"]
)
def test_a_command_refuses_what_it_does_not_use_however_it_is_written(override: str) -> None:
    with pytest.raises(ConfigError, match=r"only settings of agent, sandbox act here, but for sandbox\.warm"):
        check_acting([override], ("agent", "sandbox"), ("sandbox.warm",))
    check_acting(["sandbox={memory_mb: 600}", "agent.max_steps=3"], ("agent", "sandbox"), ("sandbox.warm",))
