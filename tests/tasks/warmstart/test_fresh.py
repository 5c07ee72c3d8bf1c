"""The tiny model that is made from nothing, and the policy that is shipped."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.tasks.environments.world.world import all_names
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.fresh.model import make_folder
from nbrl.tasks.warmstart.fresh.tokenizer import FreshModel
from nbrl.tasks.warmstart.sources.world import WorldDemonstrations

POLICY = Path(__file__).parents[3] / "infra" / "policies" / "tiny"
TINY_AGENT = load("tiny-cpu").agent


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(FreshModel(), 0, TINY_AGENT, tmp_path_factory.mktemp("fresh") / "policy")


def test_the_same_settings_make_the_same_model(made: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "old").touch()
    make_folder(FreshModel(), 0, TINY_AGENT, tmp_path / "again")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (made / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert not (tmp_path / "again" / "old").exists()


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
    """Per-token loss on good actions: low enough to act well often, high enough to leave something to learn."""
    stage = DemonstrationAgent(TINY_AGENT, ChatTokenizer.load(POLICY))
    demonstrations = WorldDemonstrations(kind="world", count=15, good=1.0).record(stage, 7)
    model, losses = AutoModelForCausalLM.from_pretrained(POLICY), []
    for trajectory in demonstrations.trajectories:
        for node in trajectory.sampled():
            prompt = trajectory.path(node.parent)
            ids = torch.tensor([prompt + node.token_ids])
            labels = ids.clone()
            labels[0, : len(prompt)] = -100
            with torch.no_grad():
                losses.append(model(ids, labels=labels).loss.item())
    assert 0.01 < sum(losses) / len(losses) < 0.3
