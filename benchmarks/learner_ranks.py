"""One optimiser step of the learner by two ranks against one, each rank a process with one thread.

Both begin from the same weights, take the same steps on the same sequences, and must report the same loss. They take turns, a
step each; a step is that of learner_step.py, from token ids in memory to moved weights, in wall seconds. `speed_up` is the median
of the rounds' ratios. `apart_speed_up` is that of two single ranks which know nothing of each other and each take the whole step
at the same time: what the machine's two cores are worth beside one, where nothing is exchanged.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hardware import cpu_machine
from learner_step import SHAPES, Ours, make_model, make_sequences


def rank(number: int, ranks: int, store: str, folder: str, given: argparse.Namespace, line: Connection) -> None:
    """Takes a step for each message, and answers with the loss."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=ranks)
    sequences = make_sequences(given.sequences, given.prompt, given.sampled, SHAPES[given.shape]["vocab_size"])
    ours = Ours(folder, torch.device("cpu"), "float32", given.tokens)
    while line.recv():
        line.send(ours.step(sequences))
    dist.destroy_process_group()


class Team:
    """Ranks that take steps together."""

    def __init__(self, stack: ExitStack, name: str, ranks: int, scratch: Path, given: argparse.Namespace) -> None:
        context: Any = get_context("spawn")
        self._lines: list[Connection] = []
        for number in range(ranks):
            ours, theirs = context.Pipe()
            arguments = (number, ranks, str(scratch / name), str(scratch / "model"), given, theirs)
            process = context.Process(target=rank, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that the end of a rank ends what waits for its answer
            stack.callback(process.join)
            self._lines.append(ours)
        stack.callback(self.tell, False)

    def tell(self, goes_on: bool) -> None:
        """Begin a step, or end."""
        for line in self._lines:
            with suppress(BrokenPipeError):  # its reading tells that it has ended
                line.send(goes_on)

    def loss(self) -> float:
        """Return the loss of the step that was begun, once it is done."""
        losses = [float(line.recv()) for line in self._lines]
        return losses[0]


def step(*teams: Team) -> tuple[float, float]:
    """Seconds of a step that teams take at the same time, and its loss. Raises RuntimeError if their losses differ."""
    began = time.perf_counter()
    for team in teams:
        team.tell(True)
    losses = [team.loss() for team in teams]
    if len(set(losses)) > 1:
        raise RuntimeError(f"single ranks had the losses {losses}")
    return time.perf_counter() - began, losses[0]


def measure(given: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        make_model(SHAPES[given.shape], f"{scratch}/model", torch.float32)
        single, *apart = (Team(stack, name, 1, Path(scratch), given) for name in ("single", "left", "right"))
        pair = Team(stack, "pair", 2, Path(scratch), given)
        rows = []
        for _ in range(given.rounds + 1):
            one, loss = step(single)
            two, other = step(pair)
            if abs(loss - other) > 1e-3 * abs(loss):
                raise RuntimeError(f"one rank had the loss {loss}, two had {other}")
            rows.append((one, two, step(*apart)[0]))
    rows = rows[1:]  # the first was a rehearsal
    ratios = sorted(one / two for one, two, _ in rows)
    return {
        "one_rank_s": round(statistics.median(one for one, _, _ in rows), 3),
        "two_ranks_s": round(statistics.median(two for _, two, _ in rows), 3),
        "speed_up": round(statistics.median(ratios), 2),
        "speed_up_range": [round(ratios[0], 2), round(ratios[-1], 2)],
        "apart_speed_up": round(statistics.median(2 * one / both for one, _, both in rows), 2),
        "shape": given.shape,
        "sequences": given.sequences,
        "micro_batch_tokens": given.tokens,
        "rounds": given.rounds,
        "load": round(os.getloadavg()[0], 1),
        "hardware": cpu_machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=160, help="mean tokens of a prompt")
    parser.add_argument("--sampled", type=int, default=256, help="mean tokens sampled")
    parser.add_argument("--tokens", type=int, default=2048, help="of one micro-batch")
    parser.add_argument("--shape", choices=["small", "tiny"], default="small", help="of the model, as in learner_step.py")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
