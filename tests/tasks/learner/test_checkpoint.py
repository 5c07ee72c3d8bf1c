"""Checkpoints: whole or not there, written in the background, resumed on any number of ranks."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from nbrl.infra.manifest import check_folder
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner import learner as learner_module
from nbrl.tasks.learner.checkpoint import sharded_state
from nbrl.tasks.learner.checkpoint.identity import checkpoint_identity
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.model.load import load_sharded
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult
from nbrl.tasks.learner.proof import Proof
from nbrl.tasks.learner.settings import UpdateSettings
from tests.tasks.learner import update_lab
from tests.tasks.learner.alone import folder_shelf
from tests.tasks.learner.update_lab import make_learner

GAE = AdvantageSettings(estimator="gae")


def learn(policy: Path, workers: int, folder: Path, numbers: range, before: str | None) -> list[tuple[str, float, list[Tensor]]]:
    """Orders in a row by one learner: checkpoint, learning rate and the generators of all ranks after each."""
    settings = UpdateSettings.model_validate(
        {"workers": workers, "dtype": "float64", "lr": 0.1, "eps": 1.0, "kl_coefficient": 0.1, "critic": {"lr": 0.1}}
        | {"warmup_steps": 2, "lr_schedule": "cosine", "lr_decay_steps": 5}
    )
    learner, results = Learner(settings, update_lab.places(policy), torch.device("cpu")), []
    if before is None:
        torch.rand(3)
    for number in numbers:
        order = update_lab.write_order(
            folder / f"rank{dist.get_rank()}",
            update_lab.make_trajectories(number, 7),
            str(folder / f"out{number}"),
            iteration=number,
            checkpoint_in=before,
            estimator=GAE,
        )
        result = learner.execute(order)
        before = result.checkpoint
        generators: list[Any] = [None] * workers
        dist.all_gather_object(generators, torch.get_rng_state())
        results.append((before, result.metrics["update/lr"], generators))
    return results


@pytest.mark.more
@pytest.mark.process
@pytest.mark.usefixtures("alone")
def test_a_run_goes_on_with_another_number_of_ranks(policy64: Path, tmp_path: Path) -> None:
    undisturbed = learn(policy64, 1, tmp_path / "undisturbed", range(4), None)
    moved, before = [], None
    for number, ranks in enumerate((2, 1, 3, 2)):
        made = update_lab.on_ranks(ranks, learn, policy64, ranks, tmp_path / "moved", range(number, number + 1), before)
        moved += made
        before = made[0][0]
    for (here, rate, _), (there, other, _) in zip(undisturbed, moved, strict=True):
        assert rate == other
        torch.testing.assert_close(update_lab.weights(there), update_lab.weights(here), rtol=1e-6, atol=1e-8)
    assert len({rate for _, rate, _ in moved}) == 3  # warm-up, the peak twice, and the first step down
    first, second, third, fourth = (generators for _, _, generators in moved)
    assert not torch.equal(first[0], torch.Generator().manual_seed(0).get_state())
    assert all(torch.equal(generators[0], first[0]) for generators in (second, third, fourth))
    assert torch.equal(fourth[1], third[1])


@pytest.mark.more
@pytest.mark.usefixtures("alone")
def test_a_learner_that_goes_on_from_a_checkpoint_loads_no_second_model(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = UpdateSettings(workers=1, lr=1e-2, kl_coefficient=0)
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), str(tmp_path / "a"))
    first = Learner(settings, update_lab.places(policy), torch.device("cpu")).execute(order)
    loaded = []
    monkeypatch.setattr(
        learner_module, "load_sharded", lambda *given, **more: loaded.append(load_sharded(*given, **more)) or loaded[-1]
    )
    learner = Learner(settings, update_lab.places(policy), torch.device("cpu"))
    on = {"iteration": 1, "checkpoint_in": first.checkpoint}
    second = learner.execute(order.model_copy(update=on | {"checkpoint_out": update_lab.key(tmp_path / "b")}))
    assert len(loaded) == 1
    again = learner.execute(order.model_copy(update=on | {"checkpoint_out": update_lab.key(tmp_path / "c")}))
    assert len(loaded) == 2
    assert again.proof == second.proof != first.proof


def die(store: str, policy: Path, order: UpdateOrder, event: str, path: str) -> None:
    """Carry out the order in this process, and kill it when it is about to do `event` with `path`."""

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        if name == event and str(arguments[1 if event == "os.rename" else 0]).endswith(path):
            os.kill(os.getpid(), signal.SIGKILL)

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    learner = Learner(UpdateSettings(workers=1, lr=1e-2), update_lab.places(policy), torch.device("cpu"))
    sys.addaudithook(hook)
    learner.execute(order)


@pytest.mark.more
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("event", "path"),
    [
        pytest.param("open", ".partial/state/__0_0.distcp", id="in the state"),
        pytest.param("open", ".partial/result.json", id="before the result"),
        pytest.param("os.rename", "/out", id="before the name"),
    ],
)
def test_a_kill_leaves_nothing_of_the_name_and_the_order_can_be_done_again(
    policy: Path, tmp_path: Path, event: str, path: str
) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), str(tmp_path / "out"))
    child = mp.get_context("forkserver").Process(target=die, args=(str(tmp_path / "store"), policy, order, event, path))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert (tmp_path / "out.partial" / "state").is_dir()
    assert not (tmp_path / "out").exists()
    learner = Learner(UpdateSettings(workers=1, lr=1e-2), update_lab.places(policy), torch.device("cpu"))
    again = learner.execute(order)
    other = learner.execute(order.model_copy(update={"checkpoint_out": update_lab.key(tmp_path / "other")}))
    assert again.proof == other.proof
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.usefixtures("alone")
def test_what_is_written_is_the_state_of_the_call_however_the_model_changes(tmp_path: Path) -> None:
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(300)).sum().backward()
    optimizer.step()
    weight, moment = model.weight.detach().clone(), optimizer.state[model.weight]["exp_avg"].clone()
    writing = sharded_state.save(tmp_path / "state", model, optimizer, 7, dist.group.WORLD)
    for held in (model.weight.data, optimizer.state[model.weight]["exp_avg"]):
        held.zero_()
    writing.check()
    assert sharded_state.load(tmp_path / "state", model, optimizer) == 7
    assert torch.equal(model.weight, weight)
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], moment)


@pytest.mark.usefixtures("alone")
def test_a_state_that_cannot_be_written_or_read_is_an_error(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    writing = sharded_state.save(Path("/proc/nowhere"), model, optimizer, 0, dist.group.WORLD)
    writing.wait()
    with pytest.raises(UpdateError, match="cannot write /proc/nowhere") as caught:
        writing.check()
    assert "\n" not in str(caught.value)
    sharded_state.save(tmp_path / "state", model, optimizer, 0, dist.group.WORLD).check()
    for shard in (tmp_path / "state").glob("*.distcp"):
        shard.unlink()
    with pytest.raises(UpdateError, match="cannot read") as caught:
        sharded_state.load(tmp_path / "state", model, optimizer)
    assert "\n" not in str(caught.value)
    (tmp_path / "state" / ".metadata").write_bytes(b"cut")
    with pytest.raises(UpdateError, match=r"cannot read .*/state: "):
        sharded_state.check(tmp_path / "state", model)


@pytest.mark.parametrize(("text", "words"), [(None, "no result.json"), ("", "spoilt"), ("{", "spoilt"), ("{}", "iteration")])
def test_a_checkpoint_without_a_whole_result_is_not_taken_for_finished(tmp_path: Path, text: str | None, words: str) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), str(tmp_path / "out"))
    shelf = folder_shelf(update_lab.STORAGE)
    (tmp_path / "out").mkdir()
    if text is not None:
        (tmp_path / "out" / "result.json").write_text(text)
    assert shelf.earlier_result(order, "digest") is None  # its order is carried out again
    with pytest.raises(UpdateError, match=f"not a finished checkpoint.*{words}") as caught:
        checkpoint_identity(update_lab.STORAGE, order.checkpoint_out)
    assert "\n" not in str(caught.value)


def test_a_finished_checkpoint_that_is_damaged_is_made_again(tmp_path: Path) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), str(tmp_path / "out"))
    result = UpdateResult(
        order="digest",
        iteration=order.iteration,
        metrics={},
        checkpoint=order.checkpoint_out,
        proof=Proof(sequences=[], before=None),
    )

    shelf = folder_shelf(update_lab.STORAGE)

    def finish() -> None:
        (shelf.begin(order.checkpoint_out) / "weights").write_bytes(b"weights")
        shelf.finish(order.checkpoint_out, result)

    finish()
    assert shelf.earlier_result(order, "digest") == result
    (tmp_path / "out/weights").write_bytes(b"weighty")
    assert shelf.earlier_result(order, "digest") is None
    finish()
    assert shelf.earlier_result(order, "digest") == result
    (tmp_path / "out/manifest.json").unlink()
    assert shelf.earlier_result(order, "digest") is None


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (torch.nn.Linear(3, 4), r"bias is 3 there and 4 here"),
        (torch.nn.Linear(3, 3, bias=False), r"bias is 3 there and none here"),
        (torch.nn.Linear(3, 3).requires_grad_(False), r"bias is 3 there and none here"),
        (torch.nn.Sequential(torch.nn.Linear(3, 3)), r"0\.bias is none there and 3 here"),
    ],
    ids=["other shapes", "fewer weights", "frozen weights", "other names"],
)
def test_a_state_of_other_weights_is_refused(tmp_path: Path, other: torch.nn.Module, words: str) -> None:
    model = torch.nn.Linear(3, 3)
    sharded_state.save(tmp_path / "state", model, torch.optim.AdamW(model.parameters()), 0, dist.group.WORLD).check()
    sharded_state.check(tmp_path / "state", model)
    with pytest.raises(UpdateError, match=f"state is of another model or other adapters .*{words}$"):
        sharded_state.check(tmp_path / "state", other)


@pytest.mark.more
@pytest.mark.usefixtures("alone")
def test_what_an_earlier_order_of_the_same_iteration_left_is_made_again(policy64: Path, tmp_path: Path) -> None:
    """As after a kill between checkpoint and record on a machine that is lost: the trajectories were sampled anew."""
    learner = make_learner(policy64)
    out = str(tmp_path / "out")
    first = update_lab.write_order(tmp_path, update_lab.make_trajectories(4), out)
    before = learner.execute(first)
    assert learner.execute(first) == before  # found
    again = update_lab.write_order(tmp_path, update_lab.make_trajectories(9), out)
    after = make_learner(policy64).execute(again)
    assert after.order != before.order
    assert after.proof.sequences[0].token_ids != before.proof.sequences[0].token_ids
    check_folder(Path(out))
