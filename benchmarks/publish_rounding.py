"""What of a small optimiser step arrives in an engine, by the numbers in which it is published.

    python benchmarks/publish_rounding.py FOLDER

From the weights of a model folder, held in float32, a sign step of each learning rate is taken: every weight moves by lr, up or
down at random. They are exported in float32, in bfloat16 rounded to nearest, and in bfloat16 rounded stochastically. The tokens
are some that the model samples. A folder in bfloat16 is where a training begins, one in float32 stands for weights that a
training has moved off bfloat16's numbers; `in_bfloat16` is the share of weights that are such numbers.

- `step`: what the step moved log-probs by, in nats: mean and 99th percentile of the absolute differences
- `noise`: the same between an export and the float32 weights from which it was made
- `changed`: the share of exported weights that are other numbers than in the export before the step
- `arrives`: of the exported change, its cosine with the true one, and its projection on it and its length as shares of that
- `arrives_16`: the same of 16 steps in one direction; every export is made of the float32 weights, no error is carried on

Prints one JSON line, and appends it to benchmarks/results/publish_rounding.jsonl with `--keep`.
"""

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hardware import processor
from torch import Tensor
from transformers import AutoModelForCausalLM

from nbrl.tasks.seeds import derive_seed

RESULTS = Path(__file__).parent / "results" / "publish_rounding.jsonl"
RATES = (1e-6, 1e-5, 1e-4)
STEPS = 16
Weights = dict[str, Tensor]
Export = Callable[[str, Tensor, int], Tensor]
EXPORTS: dict[str, Export] = {
    "float32": lambda name, weight, step: weight,
    "nearest": lambda name, weight, step: weight.bfloat16().float(),
    "stochastic": lambda name, weight, step: stochastic(weight, derive_seed("export", step, name)).float(),
}


def stochastic(weight: Tensor, seed: int) -> Tensor:
    """Return each number as one of the two beside it in bfloat16, the nearer one more likely."""
    generator = torch.Generator().manual_seed(seed)
    bits = weight.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, generator=generator, dtype=torch.int32)
    return ((bits + noise) & -(1 << 16)).view(torch.float32).bfloat16()


def sampled(lm: Any, sequences: int, tokens: int) -> Tensor:
    """Sequences that the model samples from its first token on, at temperature 1."""
    start = lm.config.bos_token_id
    prompt = torch.full((sequences, 1), 0 if start is None else start)
    with torch.no_grad():
        made: Tensor = lm.generate(prompt, do_sample=True, top_k=0, min_new_tokens=tokens, max_new_tokens=tokens)
    return made


def logprobs(lm: Any, weights: Weights, ids: Tensor) -> Tensor:
    """Of the sampled tokens, in float32 whatever the weights are."""
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            parameter.copy_(weights[name])
        return torch.log_softmax(lm(ids).logits[:, :-1], -1).gather(2, ids[:, 1:, None]).flatten()


def differences(one: Tensor, other: Tensor) -> dict[str, float]:
    sizes = (one - other).abs()
    return {"mean": rounded(sizes.mean()), "p99": rounded(sizes.quantile(0.99))}


def rounded(value: Tensor | float) -> float:
    return float(f"{float(value):.3g}")


def moved(weights: Weights, signs: Weights, distance: float) -> Weights:
    return {name: weight + distance * signs[name] for name, weight in weights.items()}


def exported(weights: Weights, way: Export, step: int) -> Weights:
    return {name: way(name, weight, step) for name, weight in weights.items()}


def arrival(before: Weights, after: Weights, true: Weights) -> dict[str, float]:
    """Return the exported change beside the true one."""
    inner = length = whole = 0.0
    for name, change in true.items():
        found = (after[name] - before[name]).double().flatten()
        inner += float(found @ change.double().flatten())
        length += float(found @ found)
        whole += float(change.double().flatten() @ change.double().flatten())
    cosine = inner / math.sqrt(length * whole) if length else 0.0
    return {"cosine": rounded(cosine), "projection": rounded(inner / whole), "length": rounded(math.sqrt(length / whole))}


def changed(before: Weights, after: Weights) -> float:
    others = sum(float((after[name] != weight).sum()) for name, weight in before.items())
    return rounded(others / sum(weight.numel() for weight in before.values()))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    lm: Any = AutoModelForCausalLM.from_pretrained(given.folder, dtype=torch.float32).eval()
    ids = sampled(lm, given.sequences, given.tokens)
    start = {name: weight.detach().clone() for name, weight in lm.named_parameters()}
    signs = {name: torch.randint(0, 2, weight.shape).float() * 2 - 1 for name, weight in start.items()}
    at_start = logprobs(lm, start, ids)
    rates = {}
    for rate in RATES:
        after = moved(start, signs, rate)
        many = moved(start, signs, STEPS * rate)
        true, true_many = ({name: each[name] - start[name] for name in start} for each in (after, many))
        at_step = logprobs(lm, after, ids)
        found: dict[str, Any] = {"step": differences(at_step, at_start)}
        for name, way in EXPORTS.items():
            before, export = exported(start, way, 0), exported(after, way, 1)
            found[name] = {
                "noise": differences(logprobs(lm, export, ids), at_step),
                "changed": changed(before, export),
                "arrives": arrival(before, export, true),
                "arrives_16": arrival(before, exported(many, way, STEPS), true_many),
            }
        rates[f"{rate:g}"] = found
    count = sum(weight.numel() for weight in start.values())
    return {
        "folder": given.folder.name,
        "weights": count,
        "tokens": int(ids[:, 1:].numel()),
        "in_bfloat16": rounded(sum(float((each == each.bfloat16()).sum()) for each in start.values()) / count),
        "rates": rates,
        "machine": processor(),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a model in Hugging Face format")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="sampled per sequence")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="append the line to the results")
    given = parser.parse_args()
    line = json.dumps(measure(given))
    if given.keep:
        with RESULTS.open("a") as file:
            file.write(f"{line}\n")
    print(line)


if __name__ == "__main__":
    main()
