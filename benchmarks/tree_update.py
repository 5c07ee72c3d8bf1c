"""The gradient of one group's loss: its trajectories as one tree, against one sequence a step, padded to a batch and unpadded.

Four rollouts of one question, shaped like L0's: a prompt that all share, and at each step a tail, a sampled action, and then the
action and its observation as history. The sequences run in the unmodified transformers model with its own attention (sdpa), and
logits are made only where the action is predicted, as in the tree. Padded is as L0 does it: prompts padded on the left to the
longest one.

The model is a Qwen3 with random weights, small enough for two cores, in which linear layers, attention and head stand to each
other as in Qwen3-0.6B. The three ways take turns. Speedups are of processor seconds (`*_cpu_s`), on which other work on the
machine tells least, and on a GPU, which is taken where there is one, of wall seconds (`*_s`). `max_grad_diff` is the largest
over the parameters of |tree - per step| / |per step|, norms of the whole parameter; in bfloat16 it is mostly what both round.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from hardware import hardware
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from nbrl.agent.trajectory import ROOT
from nbrl.tasks.learner.arrays import Ints
from nbrl.tasks.learner.attention.tree_attention import NAME
from nbrl.tasks.learner.batch.examples import Example, TreeNode
from nbrl.tasks.learner.batch.micro_batch import to_device
from nbrl.tasks.learner.batch.partition import cost_of, partition
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.model.policy_model import PolicyModel

VOCABULARY = 2712  # for each layer: the head then has 0.35 of the layers' weights, as in Qwen3-0.6B
PROMPT, SAMPLED, OBSERVED, TAIL = 2000, 150, 250, 100
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Gradients = dict[str, Tensor]


def make_model(layers: int, dtype: str = "float32") -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY * layers,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval().to(DEVICE, getattr(torch, dtype))


def make_group(rollouts: int, steps: int, scale: float, vocabulary: int) -> list[Example]:
    draw = np.random.default_rng(0)

    def ids(length: int) -> Ints:
        return draw.integers(0, vocabulary, max(1, round(length * scale)))

    prompt, none = ids(PROMPT), np.zeros(0)
    examples = []
    for rollout in range(rollouts):
        nodes = [TreeNode(ROOT, sampled=False, step=-1, ids_T=prompt, logprobs_T=none)]
        trunk = 0
        for step in range(steps):
            nodes.append(TreeNode(trunk, sampled=False, step=step, ids_T=ids(TAIL), logprobs_T=none))
            action = ids(SAMPLED)
            nodes.append(TreeNode(len(nodes) - 1, sampled=True, step=step, ids_T=action, logprobs_T=np.zeros(len(action))))
            nodes.append(TreeNode(trunk, sampled=False, step=step, ids_T=action, logprobs_T=none))
            nodes.append(TreeNode(len(nodes) - 1, sampled=False, step=step, ids_T=ids(OBSERVED), logprobs_T=none))
            trunk = len(nodes) - 1
        examples.append(Example(str(rollout), nodes, {step: float(draw.normal()) for step in range(steps)}))
    return examples


def path(nodes: Sequence[TreeNode], index: int) -> list[int]:
    ids: list[int] = []
    while index != ROOT:
        ids[:0] = nodes[index].ids_T.tolist()
        index = nodes[index].parent
    return ids


def sequences(examples: list[Example]) -> list[tuple[list[int], int, float]]:
    """Ids, how many of the last of them are sampled, and the advantage, of each step."""
    return [
        (path(example.nodes, index), len(node.ids_T), example.advantages[node.step])
        for example in examples
        for index, node in enumerate(example.nodes)
        if node.sampled
    ]


def tree_loss(lm: PreTrainedModel, examples: list[Example], budget: int) -> int:
    """Leave the gradient in the parameters, and give the number of tokens forwarded."""
    forest = Forest(examples)
    (micro_batches,) = partition(forest, range(len(forest.actions)), 1, budget, cost_of(lm)).actions_by_rank
    forwarded = 0
    for actions in micro_batches:
        micro = to_device(forest.pack(actions), DEVICE)
        logp_N = PolicyModel(lm)(micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N, micro.target_N)
        (-(micro.advantage_N.float() * logp_N).sum() / forest.targets).backward()
        forwarded += len(micro.input_ids_T)
    return forwarded


def sequence_loss(lm: PreTrainedModel, examples: list[Example], rows: int) -> int:
    """Return the same, from `rows` sequences at a time, each padded to the longest of the group; alone they need no padding."""
    wanted = sequences(examples)
    longest = max(len(ids) for ids, _, _ in wanted)
    count, total = wanted[0][1], sum(sampled for _, sampled, _ in wanted)
    forwarded = 0
    for first in range(0, len(wanted), rows):
        several = wanted[first : first + rows]
        width = longest if rows > 1 else len(several[0][0])
        input_ids_BL = torch.tensor([[0] * (width - len(ids)) + ids for ids, _, _ in several], device=DEVICE)
        mask_BL = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _, _ in several], device=DEVICE)
        padding = {"attention_mask": mask_BL, "position_ids": (mask_BL.cumsum(1) - 1).clamp(min=0)} if rows > 1 else {}
        logits_BNV = lm(input_ids=input_ids_BL, use_cache=False, logits_to_keep=count + 1, **padding).logits[:, :-1].float()
        target_BN = input_ids_BL[:, -count:]
        logp_BN = logits_BNV.gather(2, target_BN[:, :, None])[:, :, 0] - logits_BNV.logsumexp(2)
        advantage_B = torch.tensor([advantage for _, _, advantage in several], device=DEVICE)
        (-(advantage_B[:, None] * logp_BN).sum() / total).backward()
        forwarded += input_ids_BL.numel()
    return forwarded


def measured(lm: PreTrainedModel, attention: str, work: Callable[[], int]) -> tuple[float, float, int, Gradients]:
    """Seconds, processor seconds, tokens forwarded, and the gradients."""
    lm.set_attn_implementation(attention)
    lm.zero_grad(set_to_none=True)
    began, began_cpu = time.perf_counter(), time.process_time()
    tokens = work()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return seconds, cpu, tokens, {name: each.grad for name, each in lm.named_parameters() if each.grad is not None}


def largest_difference(found: Gradients, expected: Gradients) -> float:
    return max(float(torch.linalg.norm(found[name] - each) / torch.linalg.norm(each)) for name, each in expected.items())


def measure(given: argparse.Namespace) -> dict[str, object]:
    torch.set_num_threads(given.threads)
    lm = make_model(given.layers, given.dtype)
    examples = make_group(given.rollouts, given.steps, given.scale, lm.config.vocab_size)
    unique = Forest(examples).tokens
    ways: dict[str, tuple[str, Callable[[], int]]] = {
        "tree": (NAME, lambda: tree_loss(lm, examples, given.budget)),
        "per_step": ("sdpa", lambda: sequence_loss(lm, examples, 1)),
        "padded": ("sdpa", lambda: sequence_loss(lm, examples, given.rows)),
    }
    small = make_group(2, 2, 0.02, lm.config.vocab_size)
    measured(lm, NAME, lambda: tree_loss(lm, small, given.budget))
    measured(lm, "sdpa", lambda: sequence_loss(lm, small, 2))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    tokens: dict[str, int] = {}
    difference = 0.0
    for _ in range(given.rounds):
        gradients: dict[str, Gradients] = {}
        for name, (attention, work) in ways.items():
            elapsed, worked, tokens[name], gradients[name] = measured(lm, attention, work)
            seconds[name].append(elapsed)
            cpu[name].append(worked)
        difference = max(difference, largest_difference(gradients["tree"], gradients["per_step"]))

    compared = seconds if DEVICE.type == "cuda" else cpu

    def speedup(other: str) -> float:
        return round(statistics.median(b / a for a, b in zip(compared["tree"], compared[other], strict=True)), 2)

    return {
        "scale": given.scale,
        "unique_tokens": unique,
        "tree_tokens": tokens["tree"],
        "padded_tokens": tokens["padded"],
        "per_step_tokens": tokens["per_step"],
        "speedup_vs_padded": speedup("padded"),
        "speedup_vs_per_step": speedup("per_step"),
        "max_grad_diff": float(f"{difference:.2g}"),
        **{f"{name}_s": round(statistics.median(each), 3) for name, each in seconds.items()},
        **{f"{name}_cpu_s": round(statistics.median(each), 3) for name, each in cpu.items()},
        "budget": given.budget,
        "rounds": given.rounds,
        "layers": given.layers,
        "dtype": given.dtype,
        "padded_rows": given.rows,
        "threads": torch.get_num_threads(),
        "hardware": hardware(),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.25, help="of all lengths; 1 is L0's shape and takes minutes a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of weights and passes")
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--budget", type=int, default=1_000_000, help="tokens of a tree's micro-batch; one tree by default")
    parser.add_argument("--rows", type=int, default=4, help="sequences of a padded batch")
    parser.add_argument("--threads", type=int, default=1, help="as many as a worker of the learner has by default")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
