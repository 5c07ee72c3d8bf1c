"""How far are engine and trainer apart on a mixture of experts, with its own choice of experts and with the engine's?

Usage: python benchmarks/router_replay.py [--trajectories 24] [--dtype bfloat16]

A random Qwen3 of three layers with 8 experts, two of them for a token, samples three actions of 24 tokens after random prompts of
each trajectory, in a real engine. The learner scores the same tokens twice, with and without `update.router_replay`.

One JSON line with the mean and the largest difference of a token's log-prob, in nats, and the share of tokens beyond 0.1.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from hardware import cpu_machine
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Sampling
from nbrl.agent.routes import RouteLog
from nbrl.agent.trajectory import ROOT, Node, Status, Trajectory, to_table
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import ROUTES, EngineSettings, headers
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.advantage.estimate import ADVANTAGES_SCHEMA
from nbrl.tasks.layout.checkpoints import TOKEN_LOGPROBS
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import StoredTable, UpdateOrder
from nbrl.tasks.learner.places import Places
from nbrl.tasks.learner.settings import UpdateSettings

VOCABULARY, STEPS, SAMPLED, FAR = 300, 3, 24, 0.1


def make_model(folder: Path) -> None:
    torch.manual_seed(1)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


async def sampled(engine: EngineServer, count: int) -> list[Trajectory]:
    draw, made = np.random.default_rng(0), []
    async with engine_session(120, headers(engine.key)) as session:
        for number in range(count):
            log = RouteLog()
            policy = SglangPolicy(session, engine.url, [], Sampling(), routes=log)
            task = Node(parent=ROOT, kind="task", step=-1, token_ids=draw.integers(0, VOCABULARY, 12).tolist())
            fields = {"id": f"t{number}", "group": "g", "sample": number, "question": "?", "ability": "", "answer": ""}
            trajectory = Trajectory(**fields, status=Status.ANSWERED, nodes=[task], steps=[])
            for step in range(STEPS):
                prompt = Prompt([trajectory.path(step)], [])
                reply = await policy.generate(prompt, SAMPLED, number * STEPS + step)
                drawn = {"token_ids": reply.token_ids, "logprobs": reply.logprobs}
                trajectory.nodes.append(Node(parent=step, kind="sampled", step=step, **drawn))
            trajectory.routes = log.of(trajectory)
            made.append(trajectory)
    return made


def apart(model: Path, trajectories: list[Trajectory], folder: Path, replay: bool, dtype: str) -> dict[str, float]:
    """Return how far the learner's log-probs are from the engine's."""
    storage = Storage(StorageSettings(root=str(folder)))
    storage.write_table("trajectories.parquet", to_table(trajectories))
    rows = [{"trajectory": each.id, "step": node.step, "advantage": 1.0} for each in trajectories for node in each.sampled()]
    storage.write_table("advantages.parquet", pa.Table.from_pylist(rows, schema=ADVANTAGES_SCHEMA))
    settings = UpdateSettings.model_validate({"workers": 1, "dtype": dtype, "router_replay": replay, "kl_coefficient": 0})
    order = UpdateOrder(
        iteration=0,
        trajectories=[StoredTable(key="trajectories.parquet")],
        advantages=StoredTable(key="advantages.parquet"),
        checkpoint_out="out",
        state="none",
    )
    Learner(settings, Places(PlacedFolder(str(model)), storage), torch.device("cpu")).execute(order)
    table = pq.read_table(folder / "out" / TOKEN_LOGPROBS).to_pylist()
    mine = {(row["trajectory"], row["step"]): row["logprobs"] for row in table}
    found = [
        np.abs(np.array(mine[each.id, node.step]) - np.array(node.logprobs)) for each in trajectories for node in each.sampled()
    ]
    difference_N = np.concatenate(found)
    return {
        "mean": round(float(difference_N.mean()), 5),
        "largest": round(float(difference_N.max()), 4),
        "far": round(float((difference_N > FAR).mean()), 4),
        "tokens": len(difference_N),
    }


def measure(count: int, dtype: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = folder / "model"
        make_model(model)
        settings = EngineSettings(device="cpu", dtype=dtype, max_total_tokens=8192)
        settings = settings.model_copy(update={"extra_args": {ROUTES: ""}})
        (engine,) = wait([launch(settings, model, folder / "logs")])
        try:
            trajectories = asyncio.run(sampled(engine, count))
        finally:
            engine.stop()
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {name: apart(model, trajectories, folder / name, name == "replayed", dtype) for name in ("own", "replayed")}
        dist.destroy_process_group()
    return {"dtype": dtype, "trajectories": count, **found, "hardware": cpu_machine()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=24)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.trajectories, arguments.dtype)))


if __name__ == "__main__":
    main()
