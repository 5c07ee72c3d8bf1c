"""One optimiser step of the learner against a plain transformers loop and TRL's SFTTrainer, on the same single-turn sequences.

No sequence shares a token with another, so the tree saves nothing: what is compared is the step itself. The loss is the mean of
-log p over the sampled tokens (advantage 1, no KL), the one objective that all three have; each begins from the same weights,
takes the same AdamW steps, and must report the same loss. A step is from token ids in memory to moved weights: packing or
padding, forward, backward, clipping and AdamW; no file is read or written in it. Neighbours run one sequence at a time or a
padded batch, whichever is faster. Transformers' loss makes logits of every token; TRL, like the learner, of sampled tokens alone,
and counts the entropy besides. TRL's data loading is not counted. The ways take turns; the ratios are medians over the rounds.
Seconds are processor seconds on a CPU, on which other work on the machine tells least, with one thread as a worker has.

With --alone, the share of the device's peak that the learner's step reaches on random weights in bfloat16. Operations are those
of the model: 6 a token for each weight of a layer, 6 a sampled token for each of the output layer, and attention to the tokens
before; what is computed again in the backward pass does not count.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import transformers
from hardware import hardware
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, TrainerCallback

from nbrl.agent.trajectory import ROOT
from nbrl.tasks.layout.checkpoints import STATE
from nbrl.tasks.learner.batch.batch import Batch
from nbrl.tasks.learner.batch.examples import Example, TreeNode
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.model.load import Layers, load_sharded
from nbrl.tasks.learner.process.ranks import Ranks, Timer
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.learner.step.optimizer import OptimizedModel
from nbrl.tasks.learner.step.passes import Passes
from nbrl.tasks.learner.step.train import train

Dtype = Literal["float32", "bfloat16"]
DTYPES: dict[Dtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENIZER = Path(__file__).parent.parent / "infra/policies/tiny"
QWEN3: dict[str, Any] = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151_936, "rms_norm_eps": 1e-6}
SHAPES: dict[str, dict[str, Any]] = {
    # linear layers, attention and head stand to each other as in Qwen3-0.6B
    "small": QWEN3
    | {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"vocab_size": 10_848},
    "tiny": QWEN3
    | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"vocab_size": 640, "head_dim": 16},
    "qwen3-0.6b": QWEN3 | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "qwen3-4b": QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
PEAK_TFLOPS = {  # dense bfloat16, by the name that CUDA gives; variants of one chip differ, such as the H100's of PCIe and NVL
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA H100 80GB HBM3": 989.0,
    "NVIDIA H200": 989.0,
    "NVIDIA B200": 2250.0,
}
LR, BETAS, EPS, DECAY, CLIP = 1e-5, (0.9, 0.95), 1e-8, 0.01, 1.0


def clock() -> float:
    """Processor seconds, or with a GPU wall seconds once it has done all work that was queued."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class Sequence:
    """Token ids, of which the last `sampled` are trained on."""

    ids: list[int]
    sampled: int


def make_sequences(count: int, prompt: int, sampled: int, vocabulary: int) -> list[Sequence]:
    """Lengths are drawn evenly around the means given."""
    draw = np.random.default_rng(0)
    made = []
    for _ in range(count):
        lengths = [int(draw.integers(mean // 2, mean + mean // 2 + 1)) for mean in (prompt, sampled)]
        made.append(Sequence(draw.integers(3, vocabulary, sum(lengths)).tolist(), lengths[1]))
    return made


class Ours:
    """What Learner.execute does between reading the order and writing the checkpoint."""

    def __init__(
        self, folder: str, device: torch.device, dtype: Dtype, tokens: int, recompute: bool = False, timer: Timer | None = None
    ) -> None:
        self._settings = UpdateSettings(
            workers=1, dtype=dtype, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, grad_clip=CLIP, kl_coefficient=0,
            tokens_per_micro_batch=tokens, activation_checkpointing=recompute,
        )  # fmt: skip
        ranks, self._timer = Ranks(device), timer or Timer(device)
        self.policy = load_sharded(folder, DTYPES[dtype], ranks.mesh, Layers(recompute=recompute))
        self._models = {STATE: OptimizedModel(self.policy.lm, self._settings, lambda step: LR)}
        self._passes = Passes(self._settings, ranks, device, self._timer, self.policy, None, None)

    def step(self, sequences: list[Sequence]) -> float:
        """Return the loss before the step."""
        forest = Forest([_example(name, each) for name, each in enumerate(sequences)])
        names = [str(name) for name in range(len(sequences))]
        batch = Batch(forest, names, names, [{0: 1.0}] * len(names), names)
        constants, _ = self._passes.compute_constants(batch, None)
        trained = train(self._settings, self._passes, self._models, self._timer, batch, constants, 0)
        if trained.skipped:
            raise RuntimeError(trained.skipped)
        return trained.metrics["update/loss"]


def _example(name: int, each: Sequence) -> Example:
    ids = np.array(each.ids)
    nodes = [
        TreeNode(ROOT, sampled=False, step=-1, ids_T=ids[: -each.sampled], logprobs_T=np.zeros(0)),
        TreeNode(0, sampled=True, step=0, ids_T=ids[-each.sampled :], logprobs_T=np.full(each.sampled, -1.0)),
    ]
    return Example(str(name), nodes, {0: 1.0})


def labels(each: Sequence) -> list[int]:
    return [-100] * (len(each.ids) - each.sampled) + each.ids[-each.sampled :]


class Plain:
    """A training loop as transformers' documentation has it, `rows` sequences of like length at a time."""

    def __init__(self, folder: str, device: torch.device, dtype: Dtype, rows: int) -> None:
        self._device, self._half, self._rows = device, dtype == "bfloat16", rows
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").to(device)
        self._model.train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)

    def step(self, sequences: list[Sequence]) -> float:
        ordered = sorted(sequences, key=lambda each: len(each.ids))
        sampled = sum(each.sampled for each in sequences)
        total = torch.zeros((), device=self._device)
        for first in range(0, len(ordered), self._rows):
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
                loss = self._model(**self._padded(ordered[first : first + self._rows]), num_items_in_batch=sampled).loss
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total.item()

    def _padded(self, several: list[Sequence]) -> dict[str, Tensor]:
        width = max(len(each.ids) for each in several)

        def rows(values: list[list[int]], fill: int) -> Tensor:
            return torch.tensor([row + [fill] * (width - len(row)) for row in values], device=self._device)

        made = {"input_ids": rows([each.ids for each in several], 0), "labels": rows([labels(each) for each in several], -100)}
        if len(several) > 1:
            made["attention_mask"] = rows([[1] * len(each.ids) for each in several], 0)
        return made


class Turns(TrainerCallback):
    """TRL's steps from the first forward to the moved weights; after each, the others take their turns."""

    def __init__(self, others: dict[str, Callable[[], float]]) -> None:
        self._others = others
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.losses: defaultdict[str, list[float]] = defaultdict(list)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = clock()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds["trl"].append(clock() - self._began)
        for name, work in self._others.items():
            began = clock()
            self.losses[name].append(work())
            self.seconds[name].append(clock() - began)

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if "loss" in logs:
            self.losses["trl"].append(float(logs["loss"]))


def run_trl(folder: str, sequences: list[Sequence], dtype: Dtype, rows: int, steps: int, turns: Turns) -> None:
    """All sequences are one optimiser step, `rows` of them a micro-batch."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    ordered = sorted(sequences, key=lambda each: len(each.ids))
    with tempfile.TemporaryDirectory() as out:
        arguments = SFTConfig(
            output_dir=out, max_steps=steps, per_device_train_batch_size=rows,
            gradient_accumulation_steps=-(-len(ordered) // rows),
            train_sampling_strategy="sequential", max_length=None, gradient_checkpointing=False, bf16=dtype == "bfloat16",
            learning_rate=LR, lr_scheduler_type="constant", adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPS,
            weight_decay=DECAY, max_grad_norm=CLIP, optim="adamw_torch_fused", logging_steps=1, save_strategy="no",
            report_to="none", disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa"),
            args=arguments,
            train_dataset=Dataset.from_list([{"input_ids": each.ids, "labels": labels(each)} for each in ordered]),
            processing_class=AutoTokenizer.from_pretrained(TOKENIZER),
            callbacks=[turns],
        ).train()


def compare(given: argparse.Namespace, folder: str) -> dict[str, object]:
    device, dtype = torch.device("cuda" if torch.cuda.is_available() else "cpu"), given.dtype
    sequences = make_sequences(given.sequences, given.prompt, given.sampled, SHAPES[given.shape]["vocab_size"])
    tokens = sum(len(each.ids) for each in sequences)

    def plain_trial(rows: int) -> float:
        plain = Plain(folder, device, dtype, rows)
        plain.step(sequences)
        began = clock()
        plain.step(sequences)
        return clock() - began

    def trl_trial(rows: int) -> float:
        turns = Turns({})
        run_trl(folder, sequences, dtype, rows, 2, turns)
        return turns.seconds["trl"][-1]

    plain_rows, trl_rows = (min((1, given.rows), key=trial) for trial in (plain_trial, trl_trial))
    plain, ours = Plain(folder, device, dtype, plain_rows), Ours(folder, device, dtype, given.tokens)
    turns = Turns({"transformers": lambda: plain.step(sequences), "ours": lambda: ours.step(sequences)})
    run_trl(folder, sequences, dtype, trl_rows, given.rounds + 1, turns)
    for name, losses in turns.losses.items():
        if not np.allclose(losses[: given.rounds + 1], turns.losses["ours"], rtol=1e-3):
            raise RuntimeError(f"{name} had the losses {losses}, the learner {turns.losses['ours']}")
    seconds = {name: each[1:] for name, each in turns.seconds.items()}

    def ratio(other: str) -> list[float]:
        return sorted(b / a for a, b in zip(seconds["ours"], seconds[other], strict=True))

    ratios = {name: ratio(name) for name in ("transformers", "trl")}
    return {
        **{f"{name}_tokens_s": round(tokens / statistics.median(each)) for name, each in seconds.items()},
        **{f"ratio_{name}": round(statistics.median(each), 3) for name, each in ratios.items()},
        **{f"ratio_{name}_range": [round(each[0], 3), round(each[-1], 3)] for name, each in ratios.items()},
        "shape": given.shape,
        "tokens": tokens,
        "sampled_tokens": sum(each.sampled for each in sequences),
        "loss": round(turns.losses["ours"][-1], 4),
        "transformers_rows": plain_rows,
        "trl_rows": trl_rows,
        "dtype": dtype,
        "rounds": given.rounds,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
    }


def model_operations(shape: dict[str, Any], sequences: list[Sequence]) -> float:
    """Of a step: 2 forward and 4 backward for each multiplication of a weight or of attention."""
    width, heads = shape["hidden_size"], shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    layer = width * (2 * heads + 2 * keys + 3 * shape["intermediate_size"])
    tokens, sampled = (sum(counts) for counts in zip(*((len(each.ids), each.sampled) for each in sequences), strict=True))
    pairs = sum(len(each.ids) * (len(each.ids) + 1) // 2 for each in sequences)
    linear = shape["num_hidden_layers"] * layer * tokens + width * shape["vocab_size"] * sampled
    return float(6 * (linear + shape["num_hidden_layers"] * 2 * heads * pairs))


def utilisation(given: argparse.Namespace, folder: str) -> dict[str, object]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = SHAPES[given.shape]
    sequences = make_sequences(given.sequences, given.prompt, given.sampled, shape["vocab_size"])
    ours, seconds = Ours(folder, device, "bfloat16", given.tokens, given.activation_checkpointing), []
    for _ in range(given.rounds + 1):
        began = clock()
        ours.step(sequences)
        seconds.append(clock() - began)
    middle = statistics.median(seconds[1:])
    tflops = model_operations(shape, sequences) / middle / 1e12
    peak = given.peak_tflops or (PEAK_TFLOPS.get(torch.cuda.get_device_name()) if device.type == "cuda" else None)
    tokens = sum(len(each.ids) for each in sequences)
    return {
        "shape": given.shape,
        "ours_tokens_s": round(tokens / middle),
        "model_tflops_s": float(f"{tflops:.4g}"),
        "peak_tflops": peak,
        "model_flops_utilisation": None if peak is None else round(tflops / peak, 4),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None,
        "tokens": tokens,
        "sampled_tokens": sum(each.sampled for each in sequences),
        "activation_checkpointing": given.activation_checkpointing,
        "rounds": given.rounds,
    }


def make_model(shape: dict[str, Any], folder: str, dtype: torch.dtype, device: str = "cpu") -> None:
    """Random weights, drawn on the device."""
    torch.manual_seed(0)
    config = Qwen3Config(**shape, max_position_embeddings=40_960, tie_word_embeddings=True)
    with torch.device(device):
        lm = Qwen3ForCausalLM(config).to(dtype)
    lm.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=160, help="mean tokens of a prompt")
    parser.add_argument("--sampled", type=int, default=256, help="mean tokens sampled")
    parser.add_argument("--rows", type=int, default=4, help="sequences of the neighbours' padded batches")
    parser.add_argument("--tokens", type=int, default=8192, help="of one of the learner's micro-batches")
    parser.add_argument("--threads", type=int, default=1, help="as many as a worker of the learner has by default")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the comparison")
    parser.add_argument("--shape", choices=list(SHAPES), default="small")
    parser.add_argument("--alone", action="store_true", help="measure how much of the device's peak the learner uses")
    parser.add_argument("--activation-checkpointing", action="store_true", help="with --alone")
    parser.add_argument("--peak-tflops", type=float, help="of the device in bfloat16, where it is none of those constants")
    given = parser.parse_args()
    if (gpus := torch.cuda.device_count()) > 1:  # TRL's trainer would spread its batches over all of them
        parser.error(f"{gpus} GPUs are visible and the comparison is of one: set CUDA_VISIBLE_DEVICES to one of them")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(given.threads)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        make_model(SHAPES[given.shape], folder, torch.bfloat16 if given.alone else torch.float32)
        found = utilisation(given, folder) if given.alone else compare(given, folder)
    dist.destroy_process_group()
    print(json.dumps(found | {"hardware": hardware()}))


if __name__ == "__main__":
    main()
