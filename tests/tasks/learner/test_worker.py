"""The loop of a rank, with a mailbox that keeps what it is told."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.driver import worker
from nbrl.tasks.learner.driver.ranks import Reply
from nbrl.tasks.learner.orders import UpdateOrder


@pytest.mark.parametrize("rank", [0, 1])
def test_too_little_memory_of_a_gpu_is_a_sentence_from_any_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    told: list[tuple[int, Reply]] = []
    order = cast(Any, UpdateOrder).model_construct()

    def execute(order: UpdateOrder) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has 79 GiB")

    mailbox = SimpleNamespace(
        report_up=SimpleNamespace(remote=lambda rank: None),
        take=SimpleNamespace(remote=lambda number: order),
        answer=SimpleNamespace(remote=lambda number, answer: told.append((number, answer))),
    )
    monkeypatch.setattr(worker, "ray", SimpleNamespace(get=lambda value: value))
    learner, sender = cast(Any, SimpleNamespace(execute=execute)), cast(Any, SimpleNamespace(close=lambda: None))
    with pytest.raises(torch.OutOfMemoryError):
        worker._carry_out(learner, sender, cast(Any, mailbox), rank)
    ((number, answer),) = told
    assert number == 0
    assert isinstance(answer.error, UpdateError)
    assert "lower update.tokens_per_micro_batch, set update.activation_checkpointing to true" in str(answer.error)
    assert "Tried to allocate 20.00 GiB. GPU 0" in str(answer.error)
