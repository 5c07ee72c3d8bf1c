"""The experts that an engine chose, replayed by the learner: on random routes against a plain forward, and from a real engine."""

import asyncio
import base64
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Sampling
from nbrl.agent.routes import UNKNOWN, RouteLog
from nbrl.agent.trajectory import SAMPLED, Trajectory
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import ROUTES, EngineSettings, headers
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.layout.checkpoints import TOKEN_LOGPROBS
from tests.tasks.learner import update_lab

LAYERS, EXPERTS, CHOSEN = 3, 8, 2

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with experts, in bfloat16, so that engine and trainer choose differently now and then."""
    folder = tmp_path_factory.mktemp("moe")
    torch.manual_seed(1)
    config = Qwen3MoeConfig(
        vocab_size=update_lab.VOCAB,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=True,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def routed_at_random(trajectories: list[Trajectory]) -> list[Trajectory]:
    """With any routes of their tokens, the last of each action unknown, and those of observations not recorded."""
    draw = np.random.default_rng(3)
    for trajectory in trajectories:
        for node in trajectory.nodes:
            chosen = draw.permuted(np.tile(np.arange(EXPERTS), (len(node.token_ids), LAYERS, 1)), axis=-1)[:, :, :CHOSEN]
            if node.kind in SAMPLED:
                chosen[-1] = UNKNOWN
            trajectory.routes.append(b"" if node.kind == "observation" else chosen.astype(np.uint16).tobytes())
    return trajectories


def plain_logprobs(lm: Any, trajectory: Trajectory) -> list[list[float]]:
    """Of every action, from one sequence each, whose layers take the experts of the routes."""
    found = []
    for index, node in enumerate(trajectory.nodes):
        if node.kind not in SAMPLED:
            continue
        places, place = [index], trajectory.nodes[index].parent
        while place >= 0:
            places.insert(0, place)
            place = trajectory.nodes[place].parent
        rows = [
            np.frombuffer(trajectory.routes[each], np.uint16).reshape(-1, LAYERS, CHOSEN).astype(np.int64)
            if trajectory.routes[each]
            else np.full((len(trajectory.nodes[each].token_ids), LAYERS, CHOSEN), UNKNOWN)
            for each in places
        ]
        route = torch.from_numpy(np.concatenate(rows))
        hooks = [layer.mlp.gate.register_forward_hook(rerouted(route[:, n])) for n, layer in enumerate(lm.model.layers)]
        with torch.no_grad():
            logp = torch.log_softmax(lm(input_ids=torch.tensor([trajectory.path(index)])).logits[0], -1)
        for hook in hooks:
            hook.remove()
        ids = torch.tensor(node.token_ids)
        found.append(logp[-len(ids) - 1 : -1].gather(1, ids[:, None])[:, 0].tolist())
    return found


def rerouted(route_SK: Tensor) -> Any:
    def hook(module: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, _, own = output
        chosen = torch.where(route_SK == UNKNOWN, own, route_SK)
        scores = torch.softmax(logits, -1).gather(-1, chosen)
        return logits, scores / scores.sum(-1, keepdim=True), chosen

    return hook


@pytest.mark.parametrize("attention", ["tree", "paths"])
def test_replayed_routes_are_those_of_each_token_in_each_layer(moe: Path, tmp_path: Path, attention: str) -> None:
    trajectories = routed_at_random(update_lab.make_trajectories(11, 4))
    order = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out"))
    fields: dict[str, Any] = {"dtype": "float32", "attention": attention, "router_replay": True, "activation_checkpointing": True}
    result = update_lab.make_learner(moe, **fields, lr=1e-9, tokens_per_micro_batch=64).execute(order)
    lm = AutoModelForCausalLM.from_pretrained(moe, dtype=torch.float32).eval()
    found = update_lab.pq.read_table(update_lab.place(result) / TOKEN_LOGPROBS)["logprobs"].to_pylist()
    expected = [logprobs for each in trajectories for logprobs in plain_logprobs(lm, each)]
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


def test_routes_of_another_model_and_a_model_without_experts_are_refused(moe: Path, policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(3, 2)
    for each in trajectories:
        each.routes = [np.zeros((len(node.token_ids), 5), np.uint16).tobytes() for node in each.nodes]
    with pytest.raises(
        UpdateError, match=r"named 5 experts of a token, up to number 0, and the model has 3 layers that choose 2 of 8"
    ):
        update_lab.make_learner(moe, router_replay=True).execute(
            update_lab.write_order(tmp_path, trajectories, str(tmp_path / "o"))
        )
    with pytest.raises(UpdateError, match="has no experts whose choice could be replayed"):
        update_lab.make_learner(policy64, router_replay=True)


def test_a_log_of_routes_finds_those_of_each_node_and_asks_for_none_twice() -> None:
    (trajectory,) = update_lab.make_trajectories(5, 1)
    log, sampled = RouteLog(), [n for n, node in enumerate(trajectory.nodes) if node.kind in SAMPLED]
    starts = []
    for index in sampled:
        path, prompt = trajectory.path(index), trajectory.path(trajectory.nodes[index].parent)
        starts.append(log.start(prompt))
        log.keep(path, starts[-1], encoded([[position, path[position]] for position in range(starts[-1], len(path) - 1)]))
    shared = [len(trajectory.path(trajectory.nodes[trajectory.nodes[index].parent].parent)) for index in sampled]
    assert starts[0] == 0
    assert all(start >= 0.5 * length for start, length in zip(starts[1:], shared[:-1], strict=True))
    routes = log.of(trajectory)
    on_paths = {place for index in sampled for place in places_above(trajectory, index)}
    for place, node in enumerate(trajectory.nodes):
        if place not in on_paths:
            assert routes[place] == b""
            continue
        first, path = len(trajectory.path(place)) - len(node.token_ids), trajectory.path(place)
        expected = [number for position in range(first, len(path)) for number in (position, path[position])]
        found = array("H", routes[place]).tolist()
        assert found == ([*expected[:-2], UNKNOWN, UNKNOWN] if node.kind in SAMPLED else expected)


def places_above(trajectory: Trajectory, index: int) -> list[int]:
    places = [index]
    while trajectory.nodes[places[-1]].parent >= 0:
        places.append(trajectory.nodes[places[-1]].parent)
    return places


def test_the_last_token_of_an_action_has_the_route_that_a_longer_request_knows() -> None:
    nodes = [update_lab.node(-1, [1, 2]), update_lab.node(0, [3, 4], 0), update_lab.node(1, [5]), update_lab.node(2, [6, 7], 1)]
    trajectory = update_lab.make_trajectories(1, 1)[0].model_copy(update={"nodes": nodes})
    log = RouteLog()
    log.keep([1, 2, 3, 4], 0, encoded([[10], [11], [12]]))
    assert log.start([1, 2, 3, 4, 5]) == 3
    log.keep([1, 2, 3, 4, 5, 6, 7], 3, encoded([[13], [14], [15]]))
    assert [array("H", each).tolist() for each in log.of(trajectory)] == [[10, 11], [12, 13], [14], [15, UNKNOWN]]


def test_what_an_engine_says_that_is_no_routes_is_refused() -> None:
    log = RouteLog()
    for wrong in (encoded([[1, 2]]), encoded([[-1]] * 30), encoded([[UNKNOWN]] * 30), encoded([[1]] * 30)[:-3], "", "no base64"):
        with pytest.raises(ValueError, match=r"experts|base64|padding"):
            log.keep(list(range(31)), 0, wrong)


def encoded(rows: list[list[int]]) -> str:
    return base64.b64encode(np.array(rows, dtype="<i4").tobytes()).decode()


@pytest.fixture(scope="module")
def engine(moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    settings = EngineSettings(device="cpu", dtype="bfloat16", max_total_tokens=4096).model_copy(
        update={"extra_args": {ROUTES: ""}}
    )
    (server,) = wait([launch(settings, moe, tmp_path_factory.mktemp("logs"))])
    yield server
    server.stop()


@pytest.mark.more
@pytest.mark.engine
def test_replaying_what_a_real_engine_chose_brings_engine_and_trainer_together(
    moe: Path, engine: EngineServer, tmp_path: Path
) -> None:
    trajectories = asyncio.run(sampled_by(engine, update_lab.make_trajectories(1, 24)))
    apart = {}
    for replay in (False, True):
        order = update_lab.write_order(tmp_path / str(replay), trajectories, str(tmp_path / f"out-{replay}"))
        learner = update_lab.make_learner(moe, dtype="bfloat16", router_replay=replay)
        apart[replay] = learner.execute(order).metrics
    after, before = (apart[replay]["mismatch/logprob_mean_abs"] for replay in (True, False))
    assert after < 0.9 * before
    assert apart[True]["mismatch/own_routes_mean_abs"] == pytest.approx(before, rel=0.5)


async def sampled_by(engine: EngineServer, trajectories: list[Trajectory]) -> list[Trajectory]:
    """With actions that the engine samples after the prompts, its log-probs and its routes."""
    async with engine_session(60, headers(engine.key)) as session:
        for each in trajectories:
            log = RouteLog()
            policy = SglangPolicy(session, engine.url, [], Sampling(), routes=log)
            for index, node in enumerate(each.nodes):
                if node.kind in SAMPLED:
                    made = await policy.generate(Prompt([each.path(node.parent)], []), 24, index)
                    node.token_ids, node.logprobs = made.token_ids, made.logprobs
            each.routes = log.of(each)
    return trajectories
