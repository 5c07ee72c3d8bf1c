"""A real SGLang server on the CPU, with a random Qwen3 of a million parameters; log-probs against transformers."""

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from nbrl.agent.errors import PolicyError
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Generation, Sampling
from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import EngineSettings, headers
from nbrl.infra.errors import EngineError, PublishError
from tests.processes import descendants, stat

pytestmark = pytest.mark.engine

VOCABULARY = 512
END = 1
TOLERANCE = 1e-4


class Model:
    """A saved random model and, from transformers, the log-probs it should give."""

    def __init__(self, path: Path, seed: int) -> None:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.set_num_threads(1)  # more only get in each other's way at this size
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            eos_token_id=END,
            initializer_range=0.06,
        )
        self.module: Any = Qwen3ForCausalLM(config).eval()
        self.module.save_pretrained(path)
        self.path = path

    def logprobs(self, tokens: list[int]) -> list[float]:
        import torch

        with torch.no_grad():
            logprobs = torch.log_softmax(self.module(torch.tensor([tokens])).logits[0].double(), -1)
        return logprobs[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    folder = tmp_path_factory.mktemp("models")
    return [Model(folder / str(seed), seed) for seed in range(2)]


@pytest.fixture(scope="module")
def engine(models: list[Model], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    settings = EngineSettings(device="cpu", seeded_sampling=True, max_total_tokens=32768, request_timeout_s=60)
    (server,) = wait([launch(settings, models[0].path, tmp_path_factory.mktemp("logs"))])
    yield server
    server.stop()
    assert not server.alive()
    assert list(Path("/proc").glob(f"{server._child.pid}")) == []


Run = Callable[..., Any]


@pytest.fixture
def run(engine: EngineServer) -> Run:
    """Runs `scenario(client)` to its end."""

    def run(scenario: Callable[[EngineClient], Any]) -> Any:
        async def main() -> Any:
            async with engine.client() as client:
                return await asyncio.wait_for(scenario(client), 120)

        return asyncio.run(main())

    return run


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(5, VOCABULARY) for _ in range(source.randrange(10, 200))] for _ in range(count)]


async def generate(
    client: EngineClient,
    ids: list[int],
    *,
    max_new_tokens: int,
    stop_token_ids: Sequence[int] = (),
    seed: int | None = None,
    **sampling: float,
) -> Generation:
    """What the agents' client samples of the engine."""
    async with engine_session(client.timeout, headers(client.key)) as session:
        policy = SglangPolicy(session, client.url, list(stop_token_ids), Sampling(**sampling), seeded=seed is not None)
        return await policy.generate(Prompt([ids], []), max_new_tokens, seed or 0)


async def cached_tokens(client: EngineClient, ids: list[int]) -> int:
    """How many of the prompt's tokens the engine takes from its cache."""
    async with httpx.AsyncClient(
        base_url=client.url, headers=headers(client.key), timeout=client.timeout, trust_env=False
    ) as http:
        asked = await http.post("/generate", json={"input_ids": ids, "sampling_params": {"max_new_tokens": 1}})
        return int(asked.json()["meta_info"]["cached_tokens"])


def difference(model: Model, prompt: list[int], reply: Generation) -> float:
    expected = model.logprobs(prompt + reply.token_ids)[len(prompt) - 1 :]
    return max(abs(a - b) for a, b in zip(expected, reply.logprobs, strict=True))


def test_logprobs_agree_with_transformers_after_every_publish(run: Run, models: list[Model]) -> None:
    """Concurrent, with shared prefixes in the cache, over five swaps of the weights."""
    shared = prompts(1)[0]

    async def scenario(client: EngineClient) -> float:
        worst = 0.0
        for round_ in range(5):
            model = models[round_ % 2]
            await client.publish(model.path, f"round-{round_}")
            asked = [shared + prompt for prompt in prompts(8, round_)]
            replies = await asyncio.gather(*[generate(client, prompt, max_new_tokens=24) for prompt in asked])
            assert {reply.weights_version for reply in replies} == {f"round-{round_}"}
            worst = max(worst, *[difference(model, prompt, reply) for prompt, reply in zip(asked, replies, strict=True)])
            # A second turn on top of what was sampled: its prefix comes from the cache.
            longer = [[*prompt, *reply.token_ids, 7, 8, 9] for prompt, reply in zip(asked, replies, strict=True)]
            assert await cached_tokens(client, longer[0]) > len(longer[0]) * 0.8
            again = await asyncio.gather(*[generate(client, prompt, max_new_tokens=8) for prompt in longer])
            worst = max(worst, *[difference(model, prompt, reply) for prompt, reply in zip(longer, again, strict=True)])
        return worst

    worst = run(scenario)
    print(f"largest log-prob difference: {worst:.1e}")
    assert worst < TOLERANCE


def test_score(run: Run, models: list[Model]) -> None:
    async def scenario(client: EngineClient) -> None:
        await client.publish(models[0].path, "scored")
        for tokens in prompts(4):
            await generate(client, tokens, max_new_tokens=1)  # what is cached must be scored all the same
            for mine, theirs in zip(await client.score(tokens), models[0].logprobs(tokens), strict=True):
                assert abs(mine - theirs) < TOLERANCE

    run(scenario)


def test_logprobs_are_the_policy_s_whatever_the_sampling(run: Run, models: list[Model]) -> None:
    async def scenario(client: EngineClient) -> None:
        await client.publish(models[0].path, "tempered")
        for temperature, top_p in ((0.5, 1.0), (1.7, 1.0), (1.0, 0.5), (0.0, 1.0)):
            prompt = prompts(1)[0]
            reply = await generate(client, prompt, temperature=temperature, top_p=top_p, max_new_tokens=12)
            assert difference(models[0], prompt, reply) < TOLERANCE

    run(scenario)


@pytest.mark.more
def test_temperature_and_top_p_act(run: Run) -> None:
    async def scenario(client: EngineClient) -> None:
        async def first(**sampling: float) -> Counter[int]:
            asked = [generate(client, [5, 6, 7], max_new_tokens=1, seed=seed, **sampling) for seed in range(60)]
            return Counter(reply.token_ids[0] for reply in await asyncio.gather(*asked))

        usual = await first()
        assert len(await first(temperature=0.05)) < len(usual) / 2
        assert len(await first(top_p=0.02)) < len(usual) / 2
        assert len(await first(temperature=0.0)) == 1

    run(scenario)


def test_stop_tokens_come_with_their_logprob(run: Run, models: list[Model]) -> None:
    async def scenario(client: EngineClient) -> None:
        await client.publish(models[0].path, "stopping")
        prompt = prompts(1)[0]
        stops = list(range(100, 200))
        reply = await generate(client, prompt, max_new_tokens=64, stop_token_ids=stops)
        assert reply.finish == "stop"
        assert reply.token_ids[-1] in stops
        assert not set(reply.token_ids[:-1]) & set(stops)
        assert len(reply.logprobs) == len(reply.token_ids)
        assert difference(models[0], prompt, reply) < TOLERANCE
        length = await generate(client, prompt, max_new_tokens=5)
        assert len(length.token_ids) == 5 or length.token_ids[-1] == END
        assert length.finish == ("stop" if length.token_ids[-1] == END else "length")

    run(scenario)


def test_a_seed_decides_whatever_else_is_running(run: Run) -> None:
    asked = prompts(16)

    async def scenario(client: EngineClient) -> None:
        async def sample(number: int) -> list[int]:
            return (await generate(client, asked[number], max_new_tokens=20, seed=1000 + number)).token_ids

        alone = [await sample(number) for number in range(4)]
        together = await asyncio.gather(*[sample(number) for number in reversed(range(16))])
        assert alone == together[::-1][:4]
        others = await generate(client, asked[0], max_new_tokens=20, seed=1)
        assert others.token_ids != alone[0]

    run(scenario)


@pytest.mark.more
def test_seeded_samples_follow_the_distribution(run: Run) -> None:
    async def scenario(client: EngineClient) -> None:
        replies = await asyncio.gather(*[generate(client, [7, 8, 9], max_new_tokens=1, seed=seed) for seed in range(300)])
        counts = Counter(reply.token_ids[0] for reply in replies)
        chances = {reply.token_ids[0]: math.exp(reply.logprobs[0]) for reply in replies}
        for token, chance in chances.items():
            assert abs(counts[token] - 300 * chance) < 5 * math.sqrt(300 * chance) + 1

    run(scenario)


def test_a_publish_begins_what_is_in_flight_again_with_the_new_weights(run: Run, models: list[Model]) -> None:
    async def scenario(client: EngineClient) -> None:
        await client.publish(models[0].path, "before")
        asked = prompts(24)
        flying = [asyncio.create_task(generate(client, prompt, max_new_tokens=1000, stop_token_ids=[])) for prompt in asked]
        await asyncio.sleep(0.5)
        publishing = asyncio.create_task(client.publish(models[1].path, "after"))
        await asyncio.sleep(0.05)
        late = await generate(client, asked[0], max_new_tokens=8)
        await publishing
        outcomes = await asyncio.gather(*flying)
        for prompt, outcome in zip(asked, outcomes, strict=True):  # it came before, or after: never half and half
            assert difference(models[outcome.weights_version == "after"], prompt, outcome) < TOLERANCE
        assert any(outcome.weights_version == "after" for outcome in outcomes)
        assert late.weights_version == "after"
        assert difference(models[1], asked[0], late) < TOLERANCE

    run(scenario)


def test_refused_weights_leave_the_engine_running(run: Run, models: list[Model], tmp_path: Path) -> None:
    async def scenario(client: EngineClient) -> None:
        await client.publish(models[0].path, "good")
        with pytest.raises(PublishError, match="weights bad did not reach the engine"):
            await client.publish(tmp_path / "nothing", "bad")
        assert await client.weights_version() == "good"
        reply = await generate(client, prompts(1)[0], max_new_tokens=4)
        assert reply.weights_version == "good"

    run(scenario)


def test_paused_engine_is_recovered(run: Run, engine: EngineServer) -> None:
    """A controller that died in the middle of a publish leaves the engine paused: requests time out until `unpause`."""

    async def scenario(client: EngineClient) -> None:
        async with httpx.AsyncClient(base_url=engine.url, headers=headers(engine.key)) as controller:
            (await controller.post("/pause_generation", json={"mode": "retract"})).raise_for_status()
        async with EngineClient(engine.url, timeout=0.5, key=engine.key) as impatient:
            with pytest.raises(PolicyError, match="TimeoutError"):
                await generate(impatient, [5], max_new_tokens=1)
        await client.unpause()
        assert (await generate(client, [5], max_new_tokens=1)).token_ids

    run(scenario)


def test_an_engine_lends_its_memory_and_goes_on(run: Run, engine: EngineServer, models: list[Model]) -> None:
    async def scenario(client: EngineClient) -> None:
        await client.publish(models[0].path, "before")
        prompt = prompts(1)[0]
        expected = await client.score(prompt)
        await client.lend_memory()
        assert await client.listens(5)
        late = asyncio.create_task(client.score(prompt))
        await asyncio.sleep(0.2)
        assert not late.done()
        await client.take_memory_back()
        assert await late == expected
        await client.publish(models[0].path, "after")
        assert await client.score(prompt) == expected

    run(scenario)


@pytest.mark.parametrize(
    "header", [{"Host": "elsewhere.example"}, {"Origin": "http://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
@pytest.mark.attack(
    tried="A page of another site asks an engine, by its address or by a name of its own",
    wall="Host, Origin and Sec-Fetch-Site, beside the key",
    effect="status 403",
)
def test_a_page_of_another_site_gets_no_answer(engine: EngineServer, header: dict[str, str]) -> None:
    asked = {"url": f"{engine.url}/v1/models", "headers": headers(engine.key) | header}
    assert httpx.get(**asked, trust_env=False).status_code == 403
    assert httpx.get(f"{engine.url}/health", headers=header, trust_env=False).status_code == 403
    assert httpx.get(asked["url"], headers=headers(engine.key), trust_env=False).status_code == 200


def test_bad_requests_are_refused_and_harm_nobody(run: Run, engine: EngineServer) -> None:
    async def scenario(client: EngineClient) -> None:
        with pytest.raises(EngineError, match="between 0 and 512"):
            await client.score([5, VOCABULARY])
        with pytest.raises(EngineError, match="between 0 and 512"):
            await client.score([-1, 5])
        with pytest.raises(EngineError, match="empty prompt"):
            await client.score([])
        with pytest.raises(PolicyError, match="context length"):
            await generate(client, [5] * 3000, max_new_tokens=1)
        assert (await generate(client, [5], max_new_tokens=1)).token_ids

    run(scenario)


def test_idle_engine_is_idle(engine: EngineServer) -> None:
    def used() -> int:
        """Of all processes of the engine, in hundredths of a second."""
        total = 0
        for pid in [engine._child.pid, *descendants(engine._child.pid)]:
            with contextlib.suppress(OSError):
                total += sum(map(int, stat(pid)[11:13]))
        return total

    before = used()
    time.sleep(3)
    assert used() - before < 0.25 * 3 * 100  # hundredths of a second; without sleep-on-idle nine tenths of a core


def test_dead_engine_is_noticed(models: list[Model], engine: EngineServer) -> None:
    async def scenario() -> None:
        async with EngineClient("http://127.0.0.1:9", 5) as client:
            with pytest.raises(EngineError, match="cannot be reached"):
                await client.weights_version()
            with pytest.raises(PublishError, match="weights x did not reach"):
                await client.publish(models[0].path, "x")

    asyncio.run(scenario())
    assert engine.alive()
