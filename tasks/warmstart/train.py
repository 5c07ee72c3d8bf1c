"""Supervised training of a fresh policy on demonstrations, loss on actions only."""

import math
import random
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import cross_entropy
from transformers import Qwen3ForCausalLM

from nbrl.tasks.warmstart.demonstrations import Demonstrations, Example
from nbrl.tasks.warmstart.settings import WarmstartSettings

IGNORE = -100
# Batches sorted together by length: little padding, and still a mix of abilities in each.
POOL = 16


def _batches(examples: list[Example], batch: int, rng: random.Random) -> Iterator[list[Example]]:
    """Without end; every example once an epoch."""
    while True:
        order = rng.sample(examples, len(examples))
        for start in range(0, len(order), batch * POOL):
            pool = sorted(order[start : start + batch * POOL], key=lambda e: len(e.prompt) + len(e.action))
            chunks = [pool[i : i + batch] for i in range(0, len(pool), batch)]
            rng.shuffle(chunks)
            yield from chunks


def _tensors(batch: list[Example], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and labels; under a causal mask padding on the right is seen by nothing that is learned."""
    width = max(len(e.prompt) + len(e.action) for e in batch)
    ids = torch.full((len(batch), width), pad_id)
    labels = torch.full((len(batch), width), IGNORE)
    for row, example in enumerate(batch):
        start, end = len(example.prompt), len(example.prompt) + len(example.action)
        ids[row, :end] = torch.tensor(example.prompt + example.action)
        labels[row, start:end] = ids[row, start:end]
    return ids, labels


def _loss(model: Qwen3ForCausalLM, batch: list[Example], pad_id: int) -> torch.Tensor:
    """Mean over the learned tokens of the batch."""
    ids, labels = _tensors(batch, pad_id)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    learned = labels[:, 1:] != IGNORE
    return cross_entropy(model.lm_head(hidden[learned]), labels[:, 1:][learned])


def train(
    model: Qwen3ForCausalLM,
    demonstrations: Demonstrations,
    settings: WarmstartSettings,
    report: Callable[[str], None],
) -> dict[str, float]:
    """Train in place: copying first, then habits. Deterministic in its arguments on one machine."""
    rng = random.Random(f"train {settings.seed}")
    pad_id = int(model.config.pad_token_id or 0)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95))
    copying_steps = round(settings.steps * settings.copying_share)
    phases = {"copying": copying_steps, "habits": settings.steps - copying_steps}
    started, step, losses = time.monotonic(), 0, {"copying": 0.0, "habits": 0.0}
    model.train()
    for phase, steps in phases.items():
        examples = demonstrations.copying if phase == "copying" else demonstrations.habits
        if not examples:
            continue
        batches = _batches(examples, settings.batch, rng)
        mean = 0.0
        for index in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = settings.lr * _schedule(step, settings)
            loss = _loss(model, next(batches), pad_id)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimiser.step()
            step += 1
            mean = loss.item() if index == 0 else 0.95 * mean + 0.05 * loss.item()
            if step % settings.log_every == 0 or index == steps - 1:
                report(f"{phase} step {step}/{settings.steps} loss {mean:.4f} {time.monotonic() - started:.0f} s")
        losses[phase] = mean
    model.eval()
    return {"copying_loss": losses["copying"], "habits_loss": losses["habits"], "train_seconds": time.monotonic() - started}


def _schedule(step: int, settings: WarmstartSettings) -> float:
    """Linear rise, then half a cosine down to a tenth."""
    rise = max(1, round(settings.steps * settings.warmup))
    if step < rise:
        return (step + 1) / rise
    along = (step - rise) / max(1, settings.steps - rise)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * along))
