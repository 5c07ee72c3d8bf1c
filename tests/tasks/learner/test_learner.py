"""The learner on one rank, in this process."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from nbrl.infra.errors import DamagedError
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.layout.checkpoints import TOKEN_LOGPROBS
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import StoredTable, UpdateResult
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import EXACT, make_learner, weights

pytestmark = pytest.mark.usefixtures("alone")


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_step_is_that_of_the_naive_gradient(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(5)
    order = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out"))
    result = make_learner(policy64, **EXACT, kl_coefficient=0).execute(order)
    lm = AutoModelForCausalLM.from_pretrained(policy64, dtype=torch.float64, attn_implementation="sdpa").eval()
    total, count, row = torch.zeros((), dtype=torch.float64), 0, 0
    for trajectory in trajectories:
        for index, node in enumerate(trajectory.nodes):
            if node.kind != "sampled":
                continue
            logprobs = torch.log_softmax(lm(input_ids=torch.tensor([trajectory.path(index)])).logits[0], dim=-1)
            number = len(node.token_ids)
            picked = logprobs[-number - 1 : -1].gather(1, torch.tensor(node.token_ids)[:, None])
            total = total - update_lab.alternating(row) * picked.sum()
            count, row = count + number, row + 1
    (total / count).backward()
    assert result.metrics["update/loss"] == pytest.approx(total.item() / count, rel=1e-6)
    before, after = load_file(policy64 / "model.safetensors"), weights(result.checkpoint)
    for name, parameter in lm.named_parameters():
        assert parameter.grad is not None
        step = -parameter.grad / (parameter.grad.abs() + 1)
        assert torch.linalg.norm(after[name] - before[name] - step) <= 1e-6 * torch.linalg.norm(step), name


@pytest.mark.more
def test_micro_batches_change_nothing(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(6)
    results = []
    for tokens in (1, 100, 100_000):
        order = update_lab.write_order(tmp_path, trajectories, str(tmp_path / str(tokens)))
        results.append(make_learner(policy64, **EXACT, tokens_per_micro_batch=tokens).execute(order))
    assert len({result.metrics["update/micro_batches"] for result in results}) == 3
    for result in results[1:]:
        assert result.metrics["update/loss"] == pytest.approx(results[0].metrics["update/loss"], rel=1e-9)
        # transformers' norms are in float32, so the gradients of one trajectory's actions add up to 8 digits
        torch.testing.assert_close(weights(result.checkpoint), weights(results[0].checkpoint), rtol=1e-6, atol=1e-7)


def test_a_step_makes_rewarded_tokens_likelier(policy: Path, tmp_path: Path) -> None:
    learner, trajectories, losses, before = make_learner(policy), update_lab.make_trajectories(7), [], None
    for number in range(3):
        out = str(tmp_path / str(number))
        order = update_lab.write_order(tmp_path, trajectories, out, lambda _: 1.0, iteration=number, checkpoint_in=before)
        losses.append(learner.execute(order).metrics["update/loss"])
        before = order.checkpoint_out
    assert losses[0] > losses[1] > losses[2]


def test_kl_is_zero_at_the_reference_and_then_grows(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(8)
    first = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "with"))
    learner = make_learner(policy64, **EXACT, kl_coefficient=0.5)
    with_kl = learner.execute(first)
    without = make_learner(policy64, **EXACT, kl_coefficient=0).execute(
        first.model_copy(update={"checkpoint_out": update_lab.key(tmp_path / "without")})
    )
    assert with_kl.metrics["update/kl"] == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(weights(with_kl.checkpoint), weights(without.checkpoint), rtol=1e-12, atol=1e-12)
    second = {"iteration": 1, "checkpoint_in": with_kl.checkpoint, "checkpoint_out": update_lab.key(tmp_path / "second")}
    metrics = learner.execute(first.model_copy(update=second)).metrics
    assert metrics["update/kl"] > 0
    assert metrics["update/loss"] == pytest.approx(metrics["update/pg_loss"] + 0.5 * metrics["update/kl"])


def test_without_kl_no_reference_is_loaded(policy: Path) -> None:
    assert make_learner(policy, kl_coefficient=0)._reference is None


@pytest.mark.parametrize(
    ("bad", "what"), [(float("nan"), "loss"), pytest.param(float("inf"), "loss", marks=pytest.mark.more), (1e30, "gradient")]
)
def test_what_is_not_finite_is_never_trained_on(policy: Path, tmp_path: Path, bad: float, what: str) -> None:
    learner, trajectories = make_learner(policy), update_lab.make_trajectories(9)
    order = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "bad"), lambda row: bad if row == 1 else 1.0)
    result = learner.execute(order)
    assert result.metrics["update/skipped"] == 1
    assert what in result.skipped
    assert_same(weights(result.checkpoint), load_file(policy / "model.safetensors"))
    good = {"iteration": 1, "checkpoint_in": result.checkpoint}
    after = learner.execute(update_lab.write_order(tmp_path, trajectories, str(tmp_path / "after"), lambda _: 1.0, **good))
    plain = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "plain"), lambda _: 1.0)
    assert after.metrics["update/skipped"] == 0
    assert_same(weights(after.checkpoint), weights(make_learner(policy).execute(plain).checkpoint))


def test_a_batch_that_teaches_nothing_moves_nothing(policy: Path, tmp_path: Path) -> None:
    learner, trajectories = make_learner(policy, kl_coefficient=0), update_lab.make_trajectories(9)
    first = learner.execute(update_lab.write_order(tmp_path, trajectories, str(tmp_path / "first")))
    more = {"iteration": 1, "checkpoint_in": first.checkpoint}
    flat = learner.execute(update_lab.write_order(tmp_path, trajectories, str(tmp_path / "flat"), lambda _: 0.0, **more))
    assert flat.skipped == "the gradient is 0: nothing is to be learnt"
    assert (flat.metrics["update/skipped"], flat.metrics["update/steps"]) == (1, 0)
    assert_same(weights(flat.checkpoint), weights(first.checkpoint))  # neither by momentum nor by weight decay


def run_of(learner: Learner, folder: Path, numbers: range, before: str | None, out: str) -> list[dict[str, torch.Tensor]]:
    made = []
    for number in numbers:
        trajectories = update_lab.make_trajectories(number)
        order = update_lab.write_order(
            folder, trajectories, str(folder / f"{out}{number}"), iteration=number, checkpoint_in=before
        )
        before = learner.execute(order).checkpoint
        made.append(weights(before))
    return made


def test_a_resumed_run_is_bitwise_that_of_an_undisturbed_one(policy: Path, tmp_path: Path) -> None:
    options = {"warmup_steps": 3, "kl_coefficient": 0.1}
    undisturbed = run_of(make_learner(policy, **options), tmp_path, range(4), None, "a")
    resumed = run_of(make_learner(policy, **options), tmp_path, range(2, 4), update_lab.key(tmp_path / "a1"), "b")
    assert_same(undisturbed[2], resumed[0])
    assert_same(undisturbed[3], resumed[1])


@pytest.mark.more
def test_an_order_from_elsewhere_loads_its_checkpoint(policy: Path, tmp_path: Path) -> None:
    learner = make_learner(policy)
    first = run_of(learner, tmp_path, range(3), None, "a")
    assert_same(run_of(learner, tmp_path, range(2, 3), update_lab.key(tmp_path / "a1"), "again")[0], first[2])
    assert_same(run_of(learner, tmp_path, range(1), None, "anew")[0], first[0])


def test_an_order_is_carried_out_once(policy: Path, tmp_path: Path) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), str(tmp_path / "out"))
    first = make_learner(policy).execute(order)
    before = (tmp_path / "out/state").stat().st_mtime_ns
    assert make_learner(policy).execute(order) == first
    assert (tmp_path / "out/state").stat().st_mtime_ns == before
    with pytest.raises(UpdateError, match="iteration"):
        make_learner(policy).execute(order.model_copy(update={"iteration": 5}))


def test_what_an_interrupted_order_left_is_replaced(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "litter").touch()
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), str(tmp_path / "out"))
    make_learner(policy).execute(order)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "hf",
        "logprobs.parquet",
        "manifest.json",
        "result.json",
        "state",
    ]
    assert not (tmp_path / "out.partial").exists()


def test_refused_orders_leave_the_learner_as_it_was(policy: Path, tmp_path: Path) -> None:
    learner, trajectories = make_learner(policy), update_lab.make_trajectories(2)
    order = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out"))
    for field, value, message in [
        ("checkpoint_in", update_lab.key(tmp_path / "nowhere"), "not a finished checkpoint"),
        ("trajectories", [StoredTable(key="none.parquet")], "none.parquet"),
        ("proof_token_ids", [1, update_lab.VOCAB], "vocabulary"),
    ]:
        with pytest.raises((UpdateError, DamagedError), match=message):
            learner.execute(order.model_copy(update={field: value}))
    deep = [update_lab.make_trajectory(update_lab.rng(0), "deep", steps=3, longest=400)]
    with pytest.raises(UpdateError, match="the model takes 512"):
        learner.execute(update_lab.write_order(tmp_path / "deep", deep, str(tmp_path / "out")))
    again = run_of(make_learner(policy), tmp_path / "x", range(2, 3), None, "o")[0]
    assert_same(weights(learner.execute(order).checkpoint), again)


def test_proof_and_export_agree_with_transformers(policy: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(3)
    sampled = {
        (*each.path(index),): len(node.token_ids)
        for each in trajectories
        for index, node in enumerate(each.nodes)
        if node.kind == "sampled"
    }
    result = make_learner(policy).execute(update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out")))
    folder = update_lab.place(result) / "hf"
    assert {(*each.token_ids,): len(each.token_ids) - each.first for each in result.proof.sequences} == sampled
    lm = AutoModelForCausalLM.from_pretrained(folder)
    for each in result.proof.sequences:
        ids = torch.tensor([each.token_ids])
        with torch.no_grad():
            logprobs = torch.log_softmax(lm(input_ids=ids).logits[0], dim=-1)
        expected = logprobs[:-1].gather(1, ids[0, 1:, None])[each.first - 1 :, 0]
        torch.testing.assert_close(torch.tensor(each.logprobs), expected, rtol=1e-5, atol=1e-5)
    assert (folder / "chat_template.jinja").read_text() == (policy / "chat_template.jinja").read_text()
    assert json.loads((folder / "config.json").read_text()) == json.loads((policy / "config.json").read_text())
    asked = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "asked"), proof_token_ids=[4, 5, 6])
    assert make_learner(policy).execute(asked).proof.sequences[0].token_ids == [4, 5, 6]


def test_mismatch_is_measured_on_every_sampled_token(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(4)
    lm = AutoModelForCausalLM.from_pretrained(policy64, dtype=torch.float64).eval()
    for trajectory in trajectories:
        for index, node in enumerate(trajectory.nodes):
            if node.kind == "sampled":
                with torch.no_grad():
                    logprobs = torch.log_softmax(lm(input_ids=torch.tensor([trajectory.path(index)])).logits[0], dim=-1)
                number = len(node.token_ids)
                node.logprobs = logprobs[-number - 1 : -1].gather(1, torch.tensor(node.token_ids)[:, None])[:, 0].tolist()
    exact = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "exact"))
    assert make_learner(policy64, **EXACT).execute(exact).metrics["mismatch/logprob_max_abs"] < 1e-5
    trajectories[2].sampled()[0].logprobs[0] -= 0.25
    off = make_learner(policy64, **EXACT).execute(update_lab.write_order(tmp_path, trajectories, str(tmp_path / "off")))
    assert off.metrics["mismatch/logprob_max_abs"] == pytest.approx(0.25, abs=1e-5)
    assert off.metrics["mismatch/logprob_mean_abs"] == pytest.approx(0.25 / off.metrics["update/sampled_tokens"], abs=1e-5)


@pytest.mark.parametrize("fields", [{}, {"epochs": 2, "loss": {"kind": "ppo"}}])
def test_log_probs_of_every_sampled_token_before_the_step_are_in_the_checkpoint(
    policy64: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    trajectories = update_lab.make_trajectories(4)
    learner = make_learner(policy64, **EXACT, tokens_per_micro_batch=64, **fields)
    result = learner.execute(update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out")))
    found = {(row["trajectory"], row["step"]): row["logprobs"] for row in read_logprobs(result)}
    lm = AutoModelForCausalLM.from_pretrained(policy64, dtype=torch.float64).eval()
    for each in trajectories:
        with torch.no_grad():
            for sampled, expected in zip(each.sampled(), update_lab.action_logprobs(lm, each), strict=True):
                assert found.pop((each.id, sampled.step)) == pytest.approx(expected.tolist(), abs=1e-5)
    assert not found


def test_log_probs_of_a_later_minibatch_are_not_taken_for_those_before_the_first_step(policy64: Path, tmp_path: Path) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(4), str(tmp_path / "out"))
    learner = make_learner(policy64, **EXACT, minibatches=3, loss={"kind": "ppo", "old": "engine"})
    assert {row["trajectory"] for row in read_logprobs(learner.execute(order))} == {"t0", "t1"}


def read_logprobs(result: UpdateResult) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(update_lab.place(result) / TOKEN_LOGPROBS).to_pylist()
    return found


def test_learning_rate_warms_up(policy: Path, tmp_path: Path) -> None:
    learner, before, rates = make_learner(policy, lr=0.1, warmup_steps=2), None, []
    for number in range(3):
        order = update_lab.write_order(
            tmp_path, update_lab.make_trajectories(1), str(tmp_path / str(number)), iteration=number, checkpoint_in=before
        )
        result = learner.execute(order)
        before = result.checkpoint
        rates.append(result.metrics["update/lr"])
    assert rates == pytest.approx([0.05, 0.1, 0.1])


def test_bfloat16_keeps_float32_weights(policy: Path, tmp_path: Path) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), str(tmp_path / "out"))
    half = weights(make_learner(policy, dtype="bfloat16", lr=1e-5).execute(order).checkpoint)
    before = load_file(policy / "model.safetensors")
    assert all(value.dtype == torch.float32 for value in half.values())
    moved = [(half[name] - before[name]).abs().max().item() for name in before]
    assert 0 < max(moved) < 2e-5  # a step too small for bfloat16 weights


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match=r"config\.json"):
        make_learner(tmp_path)
