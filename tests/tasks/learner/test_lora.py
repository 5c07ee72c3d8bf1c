"""LoRA on one rank: what is trained, what is exported, what the reference costs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from peft import PeftModel
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner import learner as learner_module
from nbrl.tasks.learner.batch.micro_batch import to_device
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.model.load import load_sharded
from nbrl.tasks.learner.model.policy_model import PolicyModel
from nbrl.tasks.learner.settings import CriticSettings, LoraSettings, UpdateSettings
from nbrl.tasks.model_folder.check import ADAPTER_WEIGHTS
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import EXACT, make_learner, weights

pytestmark = pytest.mark.usefixtures("alone")

LORA = LoraSettings(rank=4, alpha=8)


def make(policy: Path, **fields: Any) -> Learner:
    return make_learner(policy, **({"lr": 1e-2, "lora": LORA} | fields))


def adapters(checkpoint: str) -> dict[str, torch.Tensor]:
    return load_file(update_lab.place(checkpoint) / "adapter" / ADAPTER_WEIGHTS)


def base(policy: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64, attn_implementation="sdpa").eval()


def own_logprobs(lm: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logp = torch.log_softmax(lm(input_ids=torch.tensor([ids])).logits[0], dim=-1)
    return logp[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]


def test_a_step_of_the_adapters_is_that_of_the_naive_gradient_and_moves_nothing_else(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(5)
    exact = EXACT | {"betas": (0.0, 0.0), "kl_coefficient": 0}
    learner = make(policy64, **exact)
    first = learner.execute(update_lab.write_order(tmp_path, trajectories, f"{tmp_path}/a"))
    order = update_lab.write_order(tmp_path, trajectories, f"{tmp_path}/b", iteration=1, checkpoint_in=first.checkpoint)
    parameters = learner._loaded.policy.named_parameters()
    frozen = {name: each.full_tensor().clone() for name, each in parameters if ".lora_" not in name}
    second = learner.execute(order)
    for name, parameter in learner._loaded.policy.named_parameters():
        assert parameter.requires_grad == (".lora_" in name)
        assert ".lora_" in name or torch.equal(parameter.full_tensor(), frozen[name])

    folder = update_lab.place(first) / "adapter"  # the second step is taken from adapters that are not 0
    lm = PeftModel.from_pretrained(base(policy64), folder, is_trainable=True, autocast_adapter_dtype=False).eval()
    total, count, row = torch.zeros((), dtype=torch.float64), 0, 0
    for trajectory in trajectories:
        for logprobs in update_lab.action_logprobs(lm, trajectory):
            total = total - update_lab.alternating(row) * logprobs.sum()
            count, row = count + len(logprobs), row + 1
    (total / count).backward()
    assert second.metrics["update/loss"] == pytest.approx(total.item() / count, rel=1e-6)
    before, after = adapters(first.checkpoint), adapters(second.checkpoint)
    found = {name.replace(".default.", "."): each.grad for name, each in lm.named_parameters() if ".lora_" in name}
    assert found.keys() == after.keys()
    for name, gradient in found.items():
        assert gradient is not None
        step = -gradient / (gradient.abs() + 1)
        assert torch.linalg.norm(after[name] - before[name] - step) <= 1e-6 * torch.linalg.norm(step), name


def test_the_export_is_the_model_with_its_adapters_merged(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(1)
    ids = trajectories[0].path(3)
    result = make(policy64, **EXACT).execute(
        update_lab.write_order(tmp_path, trajectories, f"{tmp_path}/out", proof_token_ids=ids)
    )
    out = update_lab.place(result)
    expected = torch.tensor(result.proof.sequences[0].logprobs, dtype=torch.float64)
    torch.testing.assert_close(own_logprobs(base(out / "hf"), ids), expected, rtol=1e-6, atol=1e-6)
    beside = PeftModel.from_pretrained(base(policy64), out / "adapter", autocast_adapter_dtype=False)
    torch.testing.assert_close(own_logprobs(beside, ids), expected, rtol=1e-6, atol=1e-6)
    assert (own_logprobs(base(policy64), ids) - expected).abs().max() > 1e-3
    source, whole = load_file(policy64 / "model.safetensors"), weights(result.checkpoint)
    assert whole.keys() == source.keys()
    assert {name for name in whole if not torch.equal(whole[name], source[name])} == {name for name in source if "_proj" in name}
    assert (out / "hf" / "config.json").read_bytes() == (policy64 / "config.json").read_bytes()


def test_a_step_that_is_skipped_exports_the_model_itself(policy: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(9)
    result = make(policy).execute(update_lab.write_order(tmp_path, trajectories, f"{tmp_path}/out", lambda _: float("nan")))
    assert result.skipped
    source, whole = load_file(policy / "model.safetensors"), weights(result.checkpoint)
    assert all(torch.equal(whole[name], value) for name, value in source.items())


def test_the_reference_is_the_policy_without_adapters_and_no_second_model(
    policy64: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []

    def load(*given: Any, **more: Any) -> PolicyModel:
        loaded.append(load_sharded(*given, **more))
        return loaded[-1]

    monkeypatch.setattr(learner_module, "load_sharded", load)
    trajectories = update_lab.make_trajectories(8)
    learner = make(policy64, **EXACT, kl_coefficient=0.5)
    assert len(loaded) == 1
    first = learner.execute(update_lab.write_order(tmp_path, trajectories, f"{tmp_path}/a"))
    assert first.metrics["update/kl"] == 0
    order = update_lab.write_order(tmp_path, trajectories, f"{tmp_path}/b", iteration=1, checkpoint_in=first.checkpoint)
    second = learner.execute(order)
    assert len(loaded) == 1
    beside = Learner(
        UpdateSettings(**({"workers": 1, "kl_coefficient": 0.5} | EXACT)), update_lab.places(policy64), torch.device("cpu")
    )  # its reference is a model of its own
    ours, theirs = (each._loaded.passes._reference(*_inputs(trajectories)) for each in (learner, beside))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert second.metrics["update/kl"] > 0


def _inputs(trajectories: list[Trajectory]) -> tuple[Any, ...]:
    examples = update_lab.examples(trajectories)
    micro = to_device(Forest(examples).pack(range(len(examples))), torch.device("cpu"))
    return micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N, micro.target_N


@pytest.mark.more
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(policy: Path, tmp_path: Path) -> None:
    found = []
    for restarts in (False, True):
        learner, before = make(policy), None
        for number in range(3):
            learner = make(policy) if restarts else learner
            out = str(tmp_path / f"{restarts}-{number}")
            order = update_lab.write_order(
                tmp_path, update_lab.make_trajectories(number), out, iteration=number, checkpoint_in=before
            )
            before = learner.execute(order).checkpoint
        found.append(adapters(before) | weights(before))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.more
def test_states_hold_adapters_alone(policy: Path, tmp_path: Path) -> None:
    settings = {"critic": CriticSettings(lr=1e-2), "kl_coefficient": 0}
    estimate = AdvantageSettings(estimator="gae")
    learner = make(policy, **settings)
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), f"{tmp_path}/out", estimator=estimate)
    result = learner.execute(order)
    assert result.metrics["critic/grad_norm"] > 0
    for name in ("state", "critic"):
        saved = dcp.FileSystemReader(update_lab.place(result) / name).read_metadata().state_dict_metadata
        kept = [key for key in saved if key.startswith("model.")]
        assert kept
        assert all(".lora_" in key or key.startswith("model.head.") for key in kept)
    again = update_lab.write_order(tmp_path, update_lab.make_trajectories(2), f"{tmp_path}/b", estimator=estimate, iteration=1)
    on, restarted = (
        each.execute(
            again.model_copy(update={"checkpoint_in": result.checkpoint, "checkpoint_out": update_lab.key(tmp_path / name)})
        )
        for name, each in (("on", learner), ("restarted", make(policy, **settings)))
    )
    assert on.metrics["critic/loss"] == restarted.metrics["critic/loss"]
    assert all(torch.equal(value, adapters(restarted.checkpoint)[name]) for name, value in adapters(on.checkpoint).items())


@pytest.mark.more
def test_passes_in_16_bits_keep_the_base_so_and_the_adapters_in_32(policy: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(policy, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    learner = make(tmp_path / "half", dtype="bfloat16", critic=CriticSettings(lr=1e-2))
    kept = {(".lora_" in name, each.dtype) for name, each in learner._loaded.policy.named_parameters()}
    assert kept == {(True, torch.float32), (False, torch.bfloat16)}
    order = update_lab.write_order(
        tmp_path, update_lab.make_trajectories(1), f"{tmp_path}/out", estimator=AdvantageSettings(estimator="gae")
    )
    assert not learner.execute(order).skipped
    assert {each.dtype for each in adapters(f"{tmp_path}/out").values()} == {torch.float32}
    assert {each.dtype for each in weights(f"{tmp_path}/out").values()} == {torch.bfloat16}


def test_only_named_layers_are_adapted(policy: Path, tmp_path: Path) -> None:
    learner = make(policy, lora=LORA.model_copy(update={"target_modules": ("q_proj", "v_proj")}))
    learner.execute(update_lab.write_order(tmp_path, update_lab.make_trajectories(1), f"{tmp_path}/out"))
    assert {name.split(".")[-3] for name in adapters(f"{tmp_path}/out")} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("name", ["q_project", "lm_head", "embed_tokens"])
def test_a_layer_that_cannot_be_adapted_is_refused(policy: Path, name: str) -> None:
    with pytest.raises(UpdateError, match=f"target_modules '{name}' is no linear layer.*q_proj"):
        make(policy, lora=LORA.model_copy(update={"target_modules": ("q_proj", name)}))


def test_dropout_is_not_an_option() -> None:
    with pytest.raises(ValidationError, match="dropout"):
        UpdateSettings.model_validate({"lora": {"dropout": 0.1}})


def learn(policy: Path, workers: int, folder: Path) -> list[dict[str, Any]]:
    """Two orders in a row."""
    fields: dict[str, Any] = {"workers": workers, "kl_coefficient": 0.1} | EXACT | {"lr": 0.1}
    learner, results, before = make(policy, **fields), [], None
    for number in range(2):
        order = update_lab.write_order(
            folder / f"rank{dist.get_rank()}-{number}",
            update_lab.make_trajectories(number, 7),
            str(folder / f"out{number}"),
            iteration=number,
            checkpoint_in=before,
        )
        result = learner.execute(order)
        before = result.checkpoint
        results.append(
            {"metrics": result.metrics, "proof": update_lab.proved(result), "weights": weights(before) | adapters(before)}
        )
    return results


@pytest.mark.more
@pytest.mark.process
def test_two_ranks_give_the_adapters_of_one(policy64: Path, tmp_path: Path) -> None:
    one = learn(policy64, 1, tmp_path / "one")
    two = update_lab.on_ranks(2, learn, policy64, 2, tmp_path / "two")
    for single, double in zip(one, two, strict=True):
        for key in ("update/loss", "update/kl", "update/grad_norm"):
            assert double["metrics"][key] == pytest.approx(single["metrics"][key], rel=1e-9, abs=1e-12)
        torch.testing.assert_close(double["weights"], single["weights"], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(double["proof"], single["proof"], rtol=1e-8, atol=1e-8)
