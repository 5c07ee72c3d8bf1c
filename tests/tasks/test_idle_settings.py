"""A setting that cannot act is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, Field

from nbrl.infra.closed import ClosedModel, acts_if, declared, idle_settings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import members
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.warmstart.settings import WarmstartSettings

GPUS = "ray.num_gpus=2"
PAGES = "rollout.tools.default=[read_page]"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["agent.summary_tokens=80"],
            "agent.summary_tokens has no effect where agent.trim is hard; leave it out, or .* to soft",
        ),
        (
            ["agent.trim=none", "agent.keep_steps=2"],
            "agent.keep_steps has .* agent.trim is none; .* to hard or soft",
        ),
        (["agent.thinking=native", "agent.think_tag=plan"], "agent.think_tag has no effect where agent.thinking is native"),
        (["advantage.estimator=grpo", "advantage.gamma=0.5"], "advantage.gamma has .* is grpo; .* reinforce_pp or gae or"),
        (["advantage.estimator=gae", "update.critic.lr=1e-4", "advantage.token_lam=0.5"], "advantage.token_lam has no effect"),
        (["update.lr_decay_steps=10"], "update.lr_decay_steps has no effect where update.lr_schedule is constant"),
        (["update.lr_floor=0.1"], "update.lr_floor has no effect where update.lr_schedule is constant; .* linear or cosine"),
        (["update.kl_coefficient=0", "update.kl_in=reward"], "update.kl_in has no effect where update.kl_coefficient is not set"),
        (["update.kl_coefficient=0", "update.kl_estimator=k2"], "update.kl_estimator has no effect"),
        (["update.fixed_length=100"], "update.fixed_length has no effect where update.aggregation is token_mean"),
        ([GPUS, "update.device=cpu", "update.offload=[optimizer]"], "update.offload has no effect where update.device is cpu"),
        (["ray.address=a:1", GPUS], "ray.num_gpus has no effect where ray.address is a:1; leave it out$"),
        (["ray.forward=[A]"], "ray.forward has no effect where ray.address is not set; leave it out, or set ray.address$"),
        (["storage.shared=true"], "storage.shared has no effect where ray.address is not set"),
        (["engine.machines=2", "engine.tensor_parallel=2"], "engine.machines has no effect where ray.address is not set"),
        (["update.resources={gpu: 1}"], "update.resources has no effect where ray.address is not set"),
        (["reward.qa=0", "reward.qa_weights.exact=0.9"], "reward.qa_weights has no effect where reward.qa is not set"),
        (["pipeline.uncorrected=true"], "pipeline.uncorrected has no effect where pipeline.lag is not set"),
        ([PAGES, "rollout.tools.read_page.base_url=http://a"], "read_page.base_url has .* is direct; .* to jina"),
        ([PAGES, "rollout.tools.read_page={reader: jina, max_bytes: 5000}"], "read_page.max_bytes has .* is jina; .* to direct"),
        (
            ["rollout.tools.mcp={lab: {url: http://a, environment: [A]}}"],
            "mcp.lab.environment has .*mcp.lab.command",
        ),
        (
            ["rollout.tools.mcp={lab: {command: [x], headers: {A: B}}}"],
            "mcp.lab.headers has .*mcp.lab.url is not set",
        ),
    ],
)
def test_a_setting_that_cannot_act_is_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load("tiny-cpu", overrides)
    assert overrides[-1].partition("=")[0].split(".")[0] in str(caught.value).partition(": ")[0]  # the override is named


class Below(ClosedModel):
    mode: str = "a"
    here: int = Field(0, json_schema_extra=acts_if("mode", "b"))
    above: int = Field(0, json_schema_extra=acts_if("one.mode", "b"))


class Top(ClosedModel):
    switch: bool = False
    many: dict[str, Below] = Field(default_factory=dict)
    one: Below = Field(Below(), json_schema_extra=acts_if("switch"))


def conditions(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], dict[str, Any]]]:
    for field in model.model_fields.values():
        if found := declared(field.json_schema_extra, "acts_if"):
            yield model, found
        for each in members(field.annotation):
            yield from conditions(each)


@pytest.mark.parametrize("top", [RunConfig, WarmstartSettings, PrepareSettings])
def test_each_condition_names_a_setting_and_values_that_it_can_have(top: type[BaseModel]) -> None:
    found = list(conditions(top))
    assert found
    for model, condition in found:
        where: list[type[BaseModel]] = [model if condition["key"] in model.model_fields else top]
        *above, last = condition["key"].split(".")
        for part in above:
            where = [each for section in where for each in members(section.model_fields[part].annotation)]
        for value in condition["values"]:
            assert any(value is None or repr(value) in str(section.model_fields[last].annotation) for section in where), condition
        assert all(last in section.model_fields for section in where)


def idle(top: Top) -> list[str]:
    return [sentence for _, sentence in idle_settings(top)]


def test_a_condition_is_looked_up_beside_the_setting_and_then_from_the_top() -> None:
    on = Below(mode="b")
    assert idle(Top()) == idle(Top(switch=True, one=on, many={"x": Below(mode="b", here=1, above=1)})) == []
    assert idle(Top(many={"x": Below(here=1)})) == [
        "many.x.here has no effect where many.x.mode is a; leave it out, or set many.x.mode to b"
    ]
    assert idle(Top(many={"x": Below(above=1)})) == [
        "many.x.above has no effect where one.mode is a; leave it out, or set one.mode to b"
    ]
    assert idle(Top(one=on)) == ["one has no effect where switch is not set; leave it out, or set switch"]


def test_the_shipped_settings_all_act() -> None:
    assert not list(idle_settings(load("tiny-cpu")))
