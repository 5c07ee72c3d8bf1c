"""Rank 0 of a learner as a process of its own, without Ray, that only gives weights."""

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from nbrl.infra.errors import StorageError
from nbrl.infra.node_cache import CopyLease
from nbrl.tasks.errors import LearnerEndedError, UpdateError
from nbrl.tasks.learner.checkpoint import buckets
from nbrl.tasks.learner.driver.sender import Sender
from nbrl.tasks.learner.orders import AdapterOrder, Offer, OfferOrder, SendOrder


def opened(checkpoint: str, part: str) -> CopyLease:
    return CopyLease(Path("/", checkpoint))


def _serve(pipe: Connection, bucket_bytes: int) -> None:
    buckets.BUCKET_BYTES = bucket_bytes
    sender = Sender(opened, torch.device("cpu"))
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(sender.execute(order))
        except (UpdateError, StorageError) as error:
            pipe.send(error)


class SendingRank:
    """What LearnerHandle does for a publish. Each call to `end` kills or stops the process."""

    def __init__(self, bucket_bytes: int = 20_000) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, bucket_bytes), daemon=True)
        self._process.start()
        theirs.close()

    async def offer(self, order: OfferOrder) -> Offer:
        return await self._asked(order)  # type: ignore[no-any-return]

    async def send(self, order: SendOrder) -> None:
        await self._asked(order)

    async def send_adapter(self, order: AdapterOrder) -> None:
        await self._asked(order)

    def end(self, number: signal.Signals) -> None:
        os.kill(self._process.pid or 0, number)

    def close(self) -> None:
        self._process.kill()
        self._process.join()

    async def _asked(self, order: Any) -> Any:
        try:
            self._pipe.send(order)
            while not self._pipe.poll():  # noqa: ASYNC110  # a thread could not be given up
                await asyncio.sleep(0.01)
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise LearnerEndedError("the learner has ended: rank 0: killed") from error
        if isinstance(answer, Exception):
            raise answer
        return answer
