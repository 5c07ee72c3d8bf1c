"""publish and the fleet: weights go live everywhere, and are proved."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from nbrl.infra.engine.weight_group import WeightComparison
from nbrl.infra.node_cache import PlacedFolder
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.learner.proof import Mismatch, Proof, ProofSequence
from nbrl.tasks.nodes.publish import publish
from nbrl.tasks.runs.config import PublishSettings
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.services.engine import Served
from nbrl.tasks.services.fleet import EngineFleet, Finding
from nbrl.tasks.services.services import Services
from nbrl.tasks.services.sglang_fleet import SglangFleet
from tests.tasks.engines import DoubleEngine
from tests.tasks.nodes.doubles import SCOPE, DoubleFleet, services

UPDATE = Artifact(path="runs/r/checkpoints/000003", digest="w", parts={SCOPE.layout.update_result: "x"})
BEFORE = Mismatch(mean=0.05, high=0.2)
EXACT = Mismatch(mean=1e-6, high=1e-5)


def published(folder: Path, fleet: EngineFleet, before: Mismatch = BEFORE, **settings: Any) -> Artifact:
    proof = Proof(sequences=[ProofSequence(token_ids=[1, 2, 3], first=1, logprobs=[-0.5, -0.5])], before=before)
    return published_as(services(folder, fleet), {"proof": proof.model_dump()}, **settings)


def published_as(made: Services, result: dict[str, Any], **settings: Any) -> Artifact:
    made.storage.write_bytes(SCOPE.layout.update_result, json.dumps(result).encode())
    made.config = made.config.model_copy(update=settings)
    return asyncio.run(publish.alone(made, SCOPE, UPDATE))


def test_the_checkpoint_of_the_update_goes_live_under_the_next_version(tmp_path: Path) -> None:
    fleet = DoubleFleet("2", error=2e-4, weights=WeightComparison(equal=34))
    done = published(tmp_path, fleet, EXACT)
    ((checkpoint, version),) = fleet.published
    assert checkpoint
    assert (checkpoint.place, version) == ("runs/r/checkpoints/000003", "3")
    assert (done.path, done.digest) == (UPDATE.path, "w")
    told = {"mismatch_mean_abs": 2e-4, "mismatch_p99_abs": 2e-4, "mismatch_tokens": 2, "tensors_proved": 34}
    assert {name: done.values[f"publish/{name}"] for name in told} == told
    assert done.values["publish/mismatch_ratio"] == pytest.approx(2)  # of the floor of float32, above the mismatch before


@pytest.mark.parametrize(("before", "error"), [(EXACT, 4e-4), (EXACT, math.inf), (BEFORE, math.nan)])
def test_a_mismatch_many_times_that_before_the_step_stops_the_run(tmp_path: Path, before: Mismatch, error: float) -> None:
    words = r"log-probs of 2 sampled tokens differ .* in the mean .* 99th percentile, .* publish\.tolerance is 3; its weights may"
    with pytest.raises(BrokenInvariantError, match=words):
        published(tmp_path, DoubleFleet("2", error=error), before)


def test_where_older_weights_sampled_the_mismatch_is_judged_by_that_of_the_publish_before(
    tmp_path: Path,
) -> None:
    made = services(tmp_path, DoubleFleet("2", error=4e-4))
    proof = Proof(sequences=[ProofSequence(token_ids=[1, 2, 3], first=1, logprobs=[-0.5, -0.5])], before=BEFORE)
    made.storage.write_bytes(SCOPE.layout.update_result, json.dumps({"proof": proof.model_dump()}).encode())
    assert asyncio.run(publish.alone(made, SCOPE, UPDATE)).values["publish/mismatch_ratio"] < 1
    with pytest.raises(BrokenInvariantError, match=r"4 times as much as before the update \(0 and 0,"):
        asyncio.run(publish.alone(made, SCOPE, UPDATE, Mismatch(mean=0, high=0)))
    sixteen_bits = Mismatch(mean=3e-4, high=1e-3)
    assert asyncio.run(publish.alone(made, SCOPE, UPDATE, sixteen_bits)).values["publish/mismatch_ratio"] == pytest.approx(4 / 3)


def test_a_mismatch_is_judged_by_that_of_the_same_engine_and_trainer_before(tmp_path: Path) -> None:
    assert published(tmp_path, DoubleFleet("2", error=0.14)).values["publish/mismatch_ratio"] == pytest.approx(2.8)
    with pytest.raises(BrokenInvariantError, match=r"0\.2 nats .* 4 times as much as before the update \(0\.05 and 0\.2,"):
        published(tmp_path, DoubleFleet("2", error=0.2))
    lenient = PublishSettings(tolerance=5)
    assert published(tmp_path, DoubleFleet("2", error=0.2), publish=lenient).values["publish/mismatch_ratio"] == pytest.approx(4)


def test_other_log_probs_of_the_published_weights_are_not_blamed_on_their_transfer(tmp_path: Path) -> None:
    with pytest.raises(BrokenInvariantError, match="bit for bit the published files, so the files are rounded too far or"):
        published(tmp_path, DoubleFleet("2", error=1, weights=WeightComparison(equal=34)))
    with pytest.raises(BrokenInvariantError, match="may not have arrived whole"):
        published(tmp_path, DoubleFleet("2", error=1, weights=WeightComparison(equal=33, unproved=("experts",))))


def test_other_bits_stop_the_run_though_log_probs_agree(tmp_path: Path) -> None:
    other = WeightComparison(equal=30, different=("a", "b", "c", "d"))
    with pytest.raises(BrokenInvariantError, match=r"not bit for bit those of runs/r/.*/hf .*: a, b, c and 1 more differ"):
        published(tmp_path, DoubleFleet("2", weights=other))


def test_an_update_before_which_nothing_was_scored_is_published_without_a_judgement_of_its_log_probs(tmp_path: Path) -> None:
    made = services(tmp_path, DoubleFleet("2", error=9))
    proof = Proof(sequences=[ProofSequence(token_ids=[1, 2], first=1, logprobs=[-0.5])], before=None)
    done = published_as(made, {"proof": proof.model_dump(), "metrics": {}})
    assert "publish/mismatch_ratio" not in done.values
    progress: Any = made.progress
    assert any("are not known" in str(heard) for heard in progress.heard)


def test_mismatches_are_means_and_percentiles_and_not_one_token() -> None:
    differences = [0.01] * 999 + [5.0]
    found = Mismatch.of(differences)
    assert (found.mean, found.high) == (pytest.approx(0.01499), pytest.approx(0.01))
    least, nothing = Mismatch(mean=1e-4, high=1e-4), Mismatch(mean=0, high=0)
    assert found.times(Mismatch(mean=0.005, high=0.0025), least) == pytest.approx(4)
    assert found.times(nothing, Mismatch(mean=0.01, high=0.1)) == pytest.approx(1.499)
    assert found.times(nothing, Mismatch(mean=0.1, high=0.005)) == pytest.approx(2)
    assert math.isnan(Mismatch.of([0.1, math.nan]).times(found, least))


def test_an_engine_that_answers_with_another_version_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(BrokenInvariantError, match="serves '2' after publishing '3'"):
        published(tmp_path, DoubleFleet("2", lies="2"))


class Client:
    """An engine's client without an engine."""

    def __init__(self, version: str, logprobs: tuple[float, ...] = ()) -> None:
        self.url, self.key, self.version, self.logprobs = "http://engine", "", version, list(logprobs)
        self.found = WeightComparison(equal=1)
        self.calls: list[tuple[Any, ...]] = []

    async def weights_version(self) -> str:
        return self.version

    async def score(self, token_ids: list[int], first: int, adapter: str | None) -> list[float]:
        return self.logprobs[first - 1 :]

    async def compare(self, folder: Path) -> WeightComparison:
        self.calls.append(("compare", folder))
        return self.found

    async def publish(self, path: Path, version: str, torn: bool) -> None:
        self.calls.append(("publish", path, version))
        self.version = version

    async def load_adapter(self, path: Path, version: str) -> None:
        self.calls.append(("load", path, version))

    async def unload_adapter(self, version: str) -> None:
        self.calls.append(("unload", version))

    async def name(self, version: str) -> None:
        self.version = version


CHECKPOINT = PlacedFolder("checkpoint")


def fleet_of(clients: list[Client], adapters: int = 0) -> SglangFleet:
    return SglangFleet([DoubleEngine(client, adapters > 0) for client in clients], Served(None, "0"), adapters)


def test_only_engines_with_another_version_are_published_to() -> None:
    old, new = Client("1"), Client("2")
    fleet = fleet_of([old, new])
    for _ in range(2):
        asyncio.run(fleet.serve(CHECKPOINT, "2"))
    folder = Path("checkpoint/hf")
    assert (old.calls, new.calls) == ([("publish", folder, "2"), ("compare", folder)], [])


def test_an_engine_that_is_served_other_weights_than_the_checkpoint_is_an_error() -> None:
    client = Client("1")
    client.found = WeightComparison(equal=3, different=("lm_head.weight",))
    with pytest.raises(
        BrokenInvariantError, match=r"engine 0 does not hold weights '2' .*: lm_head\.weight differs from checkpoint"
    ):
        asyncio.run(fleet_of([client]).serve(CHECKPOINT, "2"))


def test_without_a_checkpoint_the_initial_model_is_served_and_adapters_go_alone() -> None:
    whole, adapted = Client("1"), Client("1")
    asyncio.run(fleet_of([whole]).publish(None, "0"))
    fleet = fleet_of([adapted], adapters=1)
    asyncio.run(fleet.publish(CHECKPOINT, "3"))
    asyncio.run(fleet.publish(PlacedFolder("other"), "4"))
    assert whole.calls == [("publish", Path("initial"), "0")]
    loaded = [("load", Path("checkpoint/adapter"), "3"), ("load", Path("other/adapter"), "4")]
    assert adapted.calls == [*loaded, ("unload", "3")]
    assert adapted.version == "4"


def test_the_newest_adapters_are_served_side_by_side_and_each_request_names_its_own() -> None:
    client = Client("0")
    fleet = fleet_of([client], adapters=3)

    async def work() -> None:
        for version in "1234":
            await fleet.publish(PlacedFolder(version), version)
        await fleet.serve(PlacedFolder("2"), "2")  # it is there

    asyncio.run(work())
    assert client.calls == [*(("load", Path(version, "adapter"), version) for version in "1234"), ("unload", "1")]
    assert client.version == "4"
    assert [(each.adapter, each.version) for each in fleet.addresses("2")] == [("policy-2", "2")]


def test_after_a_start_older_adapters_come_beside_the_newest() -> None:
    client = Client("3")
    fleet = SglangFleet([DoubleEngine(client, True)], Served(PlacedFolder("3"), "3"), 3)

    async def work() -> None:
        await fleet.serve(None, "0")
        await fleet.serve(PlacedFolder("2"), "2")
        assert client.version == "3"
        await fleet.publish(PlacedFolder("4"), "4")

    asyncio.run(work())
    assert client.calls == [("load", Path("2/adapter"), "2"), ("load", Path("4/adapter"), "4")]
    assert [address.adapter for version in "234" for address in fleet.addresses(version)] == ["policy-2", "policy-3", "policy-4"]


def test_an_adapter_of_the_same_version_from_another_checkpoint_takes_its_place() -> None:
    client = Client("0")
    fleet = fleet_of([client], adapters=2)

    async def work() -> None:
        await fleet.publish(PlacedFolder("a"), "1")
        await fleet.serve(PlacedFolder("b"), "1")

    asyncio.run(work())
    assert client.calls == [("load", Path("a/adapter"), "1"), ("unload", "1"), ("load", Path("b/adapter"), "1")]


def test_what_is_asked_for_is_served_though_it_is_older_than_what_there_is_room_for() -> None:
    client = Client("9")
    fleet = SglangFleet([DoubleEngine(client, True)], Served(PlacedFolder("9"), "9"), 1)

    async def work() -> None:
        await fleet.serve(None, "0")
        assert (fleet.addresses("0")[0].adapter, client.version) == (None, "0")
        await fleet.serve(PlacedFolder("4"), "4")
        await fleet.serve(PlacedFolder("9"), "9")

    asyncio.run(work())
    assert client.calls == [("unload", "9"), ("load", Path("4/adapter"), "4"), ("load", Path("9/adapter"), "9"), ("unload", "4")]
    with pytest.raises(BrokenInvariantError, match="weights '4' are asked for"):
        fleet.addresses("4")


def test_an_engine_that_ended_is_started_with_all_its_adapters() -> None:
    client = Client("0")
    engine = DoubleEngine(client, True)
    fleet = SglangFleet([engine], Served(None, "0"), 2)

    async def work() -> None:
        await fleet.publish(PlacedFolder("1"), "1")
        await fleet.publish(PlacedFolder("2"), "2")
        await fleet._restart(0, fleet._served[0], "ended")

    asyncio.run(work())
    assert engine.started == [[Served(PlacedFolder("1"), "1"), Served(PlacedFolder("2"), "2")]]


def proved(fleet: SglangFleet, *logprobs: float, first: int = 1) -> list[Finding]:
    sequence = ProofSequence(token_ids=[1, 2, 3], first=first, logprobs=list(logprobs))
    return asyncio.run(fleet.prove(CHECKPOINT, "3", [sequence]))


def test_every_engine_is_proved_by_its_bits_and_its_log_probs() -> None:
    clients = [Client("3", (-0.5, -1.0)), Client("3", (-0.5, -1.25))]
    assert [each.differences for each in proved(fleet_of(clients), -0.5, -1.0)] == [[0, 0], [0, -0.25]]
    assert [each.calls for each in clients] == [[("compare", Path("checkpoint/hf"))]] * 2
    assert [each.differences for each in proved(fleet_of(clients), -1.0, first=2)] == [[0], [-0.25]]
    with pytest.raises(BrokenInvariantError, match="serves weights '2' after publishing '3'"):
        proved(fleet_of([Client("3", (-0.5,)), Client("2", (-0.5,))]), -0.5)


def test_what_is_not_compared_bit_for_bit_is_said_once() -> None:
    said: list[str] = []
    client: Any = Client("3", (-0.5,))
    client.found = WeightComparison(equal=3, unproved=("experts.w13",))
    fleet = SglangFleet([DoubleEngine(client)], Served(None, "0"), say=said.append)
    proved(fleet, -0.5)
    proved(fleet, -0.5)
    assert said == [
        "after a publish the log-probs are compared, but not every bit: the engines lay out 1 parameters in a way of their own, "
        "first experts.w13"
    ]
    assert proved(fleet_of([Client("3", (-0.5,))], adapters=1), -0.5)[0].weights is None  # an adapter


def test_a_parameter_that_differs_on_one_rank_of_an_engine_differs() -> None:
    rank: dict[str, Any] = {"equal": 4, "different": [], "unproved": ["x"], "why": ""}
    other = {"equal": 3, "different": ["x", "y"], "unproved": [], "why": ""}
    assert WeightComparison.of([rank, other]) == WeightComparison(equal=3, different=("x", "y"))


def test_log_probs_of_another_length_are_no_proof() -> None:
    with pytest.raises(ValueError, match="zip"):
        proved(fleet_of([Client("3", (-0.5,))]), -0.5, -1.0)
