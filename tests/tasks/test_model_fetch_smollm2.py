"""SmolLM2-135M of its real package: the folder answers a question as the model does."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.check import check_model
from nbrl.tasks.model_folder.fetch.catalogue import packaged
from nbrl.tasks.model_folder.safetensors_files import weights
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.recipes import load
from tests.smollm2 import NAME, smollm2

pytestmark = [pytest.mark.long, pytest.mark.process]

ODD = "  Zoë's 12345½ ②\t\n\n naïve 漢字 🙂\u200d👩 e\u0301 don't DON'T\r\n  x=1;\u00a0end   "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2(tmp_path_factory.mktemp("smollm2"))


def test_it_answers_a_question(folder: Path) -> None:
    check_model(str(folder))
    assert sum(tensor.elements for tensor in weights(folder).values()) == packaged(NAME).parameters
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        (ids,) = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    assert tokenizer.decode(ids[prompt["input_ids"].shape[1] :]) == "The capital of France is Paris.<|im_end|>"


def test_texts_come_back_whole_and_control_tokens_are_one_id_each(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode(ODD)) == ODD
    assert tokenizer.tokenize("in 2024: 3.14") == ["in", "Ġ", "2", "0", "2", "4", ":", "Ġ", "3", ".", "1", "4"]
    for number, token in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>")):
        assert tokenizer.encode(token) == [number]


def test_the_agent_and_a_recipe_take_it_within_its_limit(folder: Path) -> None:
    renderer = ChatTokenizer.load(folder, AgentSettings())
    assert (renderer.stop_ids, renderer.vocab_size) == ([2], 49_152)
    overrides = [f"policy.path={folder}", "agent.action_tokens=256"]
    check_config(load("tiny-cpu", [*overrides, "agent.context_tokens=2048"]))
    with pytest.raises(ConfigError, match="the policy reads at most 8192 tokens"):
        check_config(load("tiny-cpu", [*overrides, "agent.context_tokens=9000"]))
