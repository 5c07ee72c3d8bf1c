"""The warm start in a shortened form, and the policy that is shipped."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.corpus.search import SearchTool
from nbrl.tasks.environments.world.names import all_names
from nbrl.tasks.environments.world.world import World
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.recipes import from_settings
from nbrl.tasks.warmstart.demonstrations import examples
from nbrl.tasks.warmstart.demonstrators import record
from nbrl.tasks.warmstart.run import make_demonstrations, make_policy
from nbrl.tasks.warmstart.save import save
from nbrl.tasks.warmstart.settings import WarmstartSettings
from nbrl.tasks.warmstart.tiny_agent import TINY_AGENT
from nbrl.tasks.warmstart.tokenizer import make_tokenizer

POLICY = Path(__file__).parents[2] / "infra" / "policies" / "tiny"
SHORT = WarmstartSettings(demonstrations=60, steps=12, batch=16, log_every=4)


def warmstart(settings: WarmstartSettings, out: Path, report: Callable[[str], None]) -> dict[str, float]:
    """What the flow does, without Prefect."""
    tokenizer = make_tokenizer(settings)
    trained = make_policy(tokenizer, make_demonstrations(settings, tokenizer), settings, report)
    save(trained.model, tokenizer, out)
    return trained.metrics


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("warmstart") / "policy"
    lines: list[str] = []
    metrics = warmstart(SHORT, out, lines.append)
    assert metrics["habits_loss"] < 6.0
    assert any("copying step 8/12" in line for line in lines)
    assert any("habits step 12/12" in line for line in lines)
    return out


def test_the_same_settings_make_the_same_policy(made: Path, tmp_path: Path) -> None:
    warmstart(SHORT, tmp_path / "again", lambda line: None)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (made / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_it_replaces_an_older_policy_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "policy"
    out.mkdir()
    (out / "old").touch()
    warmstart(SHORT.model_copy(update={"steps": 1}), out, lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert not (out / "old").exists()


@pytest.mark.parametrize("shipped", [False, True])
def test_transformers_loads_it_and_renders_as_the_agent_does(made: Path, shipped: bool) -> None:
    folder = POLICY if shipped else made
    tokenizer, ours = AutoTokenizer.from_pretrained(folder), ChatTokenizer.load(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", ours.end_id)
    assert (model.config.model_type, model.dtype, model.config.vocab_size) == ("qwen3", torch.float32, ours.vocab_size)
    messages = [
        {"role": "system", "content": TINY_AGENT.render_system_prompt("").text},
        {"role": "user", "content": "Who is the mayor of Vemil?"},
        {"role": "assistant", "content": "<think>look it up first</think><code>search('mayor of Vemil')</code>"},
        {"role": "user", "content": "<output>'The mayor of Vemil is Dokur.'\n Ünïcode, 42</output>"},
    ]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    roles = [ours.message(message["role"], message["content"]) for message in messages]  # type: ignore[arg-type]
    assert rendered == [token for ids in roles for token in ids] + ours.generation_prompt()
    assert model(torch.tensor([rendered])).logits.shape == (1, len(rendered), ours.vocab_size)


def test_a_name_has_the_same_ids_wherever_it_stands() -> None:
    tokenizer = ChatTokenizer.load(POLICY)
    for name in all_names("held_out")[::10]:
        ids = tokenizer.encode_action(name)[:-1]
        assert len(ids) == 2
        for text in (f"of {name}?", f"('{name}')", f"is {name}.", f"- {name}\n", f"of {name} is"):
            whole = tokenizer.encode_action(text)
            assert any(whole[i : i + 2] == ids for i in range(len(whole)))


def test_the_shipped_policy_is_small() -> None:
    assert sum(path.stat().st_size for path in POLICY.iterdir()) <= 6 * 2**20


def test_the_shipped_policy_expects_what_is_demonstrated() -> None:
    """Per-token loss on held-out good actions: low enough to act well often, high enough to leave something to learn."""
    world = World.generate(7, "held_out", 40)
    tokenizer = ChatTokenizer.load(POLICY)
    trajectories = asyncio.run(record(world.problems, 1.0, 0, SearchTool(Corpus.in_memory(world.corpus)), tokenizer, TINY_AGENT))
    model, losses = AutoModelForCausalLM.from_pretrained(POLICY), []
    for example in examples(trajectories):
        ids = torch.tensor([example.prompt + example.action])
        labels = ids.clone()
        labels[0, : len(example.prompt)] = -100
        with torch.no_grad():
            losses.append(model(ids, labels=labels).loss.item())
    assert 0.01 < sum(losses) / len(losses) < 0.3


def test_a_typo_in_the_settings_is_an_error() -> None:
    with pytest.raises(ValidationError, match="step_count"):
        WarmstartSettings.model_validate({"step_count": 3})


def test_overrides_act_or_are_refused() -> None:
    assert from_settings(WarmstartSettings, {}, "the defaults", ["steps=5", "lr=1e-2"]).steps == 5
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        from_settings(WarmstartSettings, {}, "the defaults", ["step=5"])
    with pytest.raises(ConfigError, match="greater than or equal to 1"):
        from_settings(WarmstartSettings, {}, "the defaults", ["steps=0"])
    with pytest.raises(ConfigError, match="key=value"):
        from_settings(WarmstartSettings, {}, "the defaults", ["steps"])
