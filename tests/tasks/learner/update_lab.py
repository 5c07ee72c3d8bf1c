"""What the update's tests share: a tiny random policy, random trees and batches on disk, and ranks in processes of their own."""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import strategies as st
from safetensors.torch import load_file

from nbrl.agent.trajectory import ROOT, SCHEMA, Node, Status, Trajectory, to_table
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.advantage.estimate import ADVANTAGES_SCHEMA, REWARDS_SCHEMA
from nbrl.tasks.learner.batch.examples import Example, examples_of
from nbrl.tasks.learner.checkpoint.identity import order_digest
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import StoredTable, UpdateOrder, UpdateResult, read_tables
from nbrl.tasks.learner.places import Places
from nbrl.tasks.learner.settings import UpdateSettings

VOCAB = 300
# With eps 1 and no clip Adam's first step is lr * g / (|g| + 1): smooth in the gradient, so weights tell gradients apart.
EXACT: dict[str, Any] = {"workers": 1, "dtype": "float64", "lr": 1.0, "eps": 1.0, "weight_decay": 0.0, "grad_clip": 1e9}


# The storage of these tests: keys are paths without their first slash.
STORAGE = Storage(StorageSettings(root="/"))


def key(path: Path | str) -> str:
    return str(path).lstrip("/")


def place(of: UpdateResult | str) -> Path:
    """The folder of a checkpoint, or of the one that an update made."""
    return Path("/", of if isinstance(of, str) else of.checkpoint)


def places(policy: Path) -> Places:
    return Places(PlacedFolder(str(policy)), STORAGE)


def make_learner(policy: Path, seed: int = 0, **fields: Any) -> Learner:
    """One of a single rank on the CPU."""
    settings = UpdateSettings.model_validate({"workers": 1, "lr": 1e-3} | fields)
    return Learner(settings, places(policy), torch.device("cpu"), seed)


def weights(of: UpdateResult | str) -> dict[str, torch.Tensor]:
    """The model's, of a checkpoint or of the update that made one."""
    return load_file(place(of) / "hf" / "model.safetensors")


def digest_of(order: UpdateOrder) -> str:
    """The digest of an order that starts from the initial model."""
    return order_digest(order, read_tables(order, STORAGE), order.initial)


def tables(order: UpdateOrder) -> tuple[pa.Table, pa.Table]:
    """Trajectories and advantages of an order."""
    read = read_tables(order, STORAGE)
    return read.trajectories, read.advantages


def proved(result: UpdateResult) -> list[float]:
    """The log-probs that a publish of the result must prove."""
    return [logprob for sequence in result.proof.sequences for logprob in sequence.logprobs]


def make_policy(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A random Qwen3 of two layers with tied embeddings, and a file that stands for the tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).to(dtype).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def make_trajectory(draw: np.random.Generator, name: str, steps: int = 3, longest: int = 12) -> Trajectory:
    """Shaped as the agent's: a trunk, and at each step a tail with a sampled action hanging off it."""

    def ids() -> list[int]:
        return [int(token) for token in draw.integers(0, VOCAB, draw.integers(1, longest + 1))]

    nodes = [Node(parent=ROOT, kind="system", step=-1, token_ids=ids()), Node(parent=0, kind="task", step=-1, token_ids=ids())]
    trunk = 1
    for step in range(steps):
        nodes.append(Node(parent=trunk, kind="tail", step=step, token_ids=ids()))
        action = ids()
        logprobs = [-float(value) for value in draw.random(len(action))]
        nodes.append(Node(parent=len(nodes) - 1, kind="sampled", step=step, token_ids=action, logprobs=logprobs))
        nodes.append(Node(parent=trunk, kind="action", step=step, token_ids=action))
        nodes.append(Node(parent=len(nodes) - 1, kind="observation", step=step, token_ids=ids()))
        trunk = len(nodes) - 1
    return Trajectory(
        id=name, group="g", sample=0, question="?", ability="a", status=Status.ANSWERED, answer="", nodes=nodes, steps=[]
    )


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def alternating(row: int) -> float:
    """An advantage for each row, of either sign."""
    return (-1.0) ** row * (1 + row % 3)


def make_trajectories(seed: int, count: int = 6) -> list[Trajectory]:
    draw = rng(seed)
    return [make_trajectory(draw, f"t{index}", steps=int(draw.integers(1, 4))) for index in range(count)]


def action_logprobs(lm: Any, trajectory: Trajectory) -> list[torch.Tensor]:
    """Of every sampled action in turn, from one plain sequence each."""
    found = []
    for index, each in enumerate(trajectory.nodes):
        if each.kind == "sampled":
            logprobs = torch.log_softmax(lm(input_ids=torch.tensor([trajectory.path(index)])).logits[0], dim=-1)
            count = len(each.token_ids)
            found.append(logprobs[-count - 1 : -1].gather(1, torch.tensor(each.token_ids)[:, None])[:, 0])
    return found


def sample_as(policy: Path, trajectories: Sequence[Trajectory], noise: float) -> list[Trajectory]:
    """Give the sampled tokens the log-probs of the policy, off by up to `noise`, as an engine would; exact in float32."""
    from transformers import AutoModelForCausalLM

    lm, draw = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64).eval(), rng(0)
    for each in trajectories:
        with torch.no_grad():
            for sampled, logprobs in zip(each.sampled(), action_logprobs(lm, each), strict=True):
                off = logprobs.numpy() + draw.uniform(-noise, noise, len(logprobs))
                sampled.logprobs = off.astype(np.float32).astype(float).tolist()
    return list(trajectories)


def node(parent: int, ids: list[int], step: int = -1) -> Node:
    """A sampled node when it has a step, else a trunk node."""
    if step < 0:
        return Node(parent=parent, kind="observation", step=step, token_ids=ids)
    return Node(parent=parent, kind="sampled", step=step, token_ids=ids, logprobs=[-0.5] * len(ids))


def example(name: str, nodes: Sequence[Node], advantages: Mapping[int, float]) -> Example:
    """A trajectory's training data as they are read from a table."""
    trees = pa.array([[each.model_dump() for each in nodes]], SCHEMA.field("nodes").type)
    return examples_of(pa.table({"id": [name], "nodes": trees}), {name: advantages})[0]


def examples(trajectories: Iterable[Trajectory]) -> list[Example]:
    """With an advantage of 1 everywhere."""
    return [example(each.id, each.nodes, dict.fromkeys((node.step for node in each.sampled()), 1.0)) for each in trajectories]


@st.composite
def forests(draw: st.DrawFn) -> list[Node]:
    """Any trees, with empty nodes, several roots and sampled nodes anywhere but first on a path."""
    nodes = [node(ROOT, draw(st.lists(st.integers(0, 99), min_size=1, max_size=4)))]
    for index in range(1, draw(st.integers(2, 12))):
        parent = draw(st.integers(0, index - 1))
        ids = draw(st.lists(st.integers(0, 99), max_size=4))
        nodes.append(node(parent, ids, step=index if draw(st.booleans()) else -1))
    return nodes


def steps_of(nodes: list[Node]) -> dict[int, float]:
    return {each.step: float(each.step) for each in nodes if each.kind == "sampled"}


def write_order(
    folder: Path,
    trajectories: Sequence[Trajectory],
    out: str,
    advantage: Callable[[int], float] = alternating,
    **fields: Any,
) -> UpdateOrder:
    """Write both tables and the order over them; `advantage` is by row number, and a reward in an order with an estimator."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(each.id, node.step) for each in trajectories for node in each.sampled()]
    schema = REWARDS_SCHEMA if fields.get("estimator") else ADVANTAGES_SCHEMA
    rows = [dict(zip(schema.names, (*pair, advantage(row)), strict=True)) for row, pair in enumerate(pairs)]
    pq.write_table(to_table(trajectories), folder / "trajectories.parquet")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "advantages.parquet")
    return UpdateOrder(
        trajectories=[StoredTable(key=key(folder / "trajectories.parquet"))],
        advantages=StoredTable(key=key(folder / "advantages.parquet")),
        checkpoint_out=key(out),
        **({"iteration": 0} | fields),
    )


def _rank(rank: int, world: int, store: str, work: Callable[..., Any], arguments: tuple[Any, ...], out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        result = work(*arguments)
        if rank == 0:
            torch.save(result, out)
    finally:
        dist.destroy_process_group()


# Ranks are forked from one process that has imported what takes seconds, and that ends with this one.
set_forkserver_preload(["transformers.models.qwen3.modeling_qwen3", "nbrl.tasks.learner.learner"])


def on_ranks(world: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """Run `work` on that many gloo ranks, each a process; what rank 0 returned."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        given = (world, os.path.join(folder, "store"), work, arguments, out)
        mp.start_processes(_rank, args=given, nprocs=world, start_method="forkserver")
        return torch.load(out, weights_only=False)
