"""Resources of a cluster, and what workers of one that is joined get."""

import os

import psutil
import pytest
from pydantic import BaseModel, ValidationError

from nbrl.infra import ray_worker
from nbrl.infra.errors import ServerError
from nbrl.infra.placement import Resources, for_sandboxes, offers
from nbrl.infra.ray_cluster import RaySettings, _forwarded
from nbrl.infra.ray_worker import interface_of, setup


class Taking(BaseModel):
    resources: Resources


@pytest.mark.parametrize(
    ("resources", "words"), [({"GPU": 1}, "GPU is Ray's own; name a resource of yours"), ({"sandbox": 0}, "sandbox is 0, but")]
)
def test_resources_that_could_not_place_anything_are_refused(resources: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Taking(resources=resources)


def test_a_machine_offers_what_it_has_enough_of() -> None:
    machine = {"CPU": 2.0, "sandbox": 4.0}
    assert offers(machine, {})
    assert offers(machine, {"sandbox": 4})
    assert not offers(machine, {"sandbox": 5})
    assert not offers(machine, {"sandbox": 1, "engine": 1})


def test_sandboxes_keep_to_machines_without_gpus_unless_they_are_told_where_to_stand() -> None:
    def machine(number: str, alive: bool = True, **resources: float) -> dict[str, object]:
        return {"NodeID": number, "Alive": alive, "Resources": {"CPU": 2.0, **resources}}

    gpus, plain = machine("g", GPU=8.0), machine("p", sandbox=4.0)
    assert for_sandboxes([gpus, plain, machine("d", alive=False)], {}) == ["p"]
    assert for_sandboxes([gpus, machine("h", GPU=1.0)], {}) == ["g", "h"]
    assert for_sandboxes([machine("x", GPU=8.0, sandbox=1.0), plain], {"sandbox": 1}) == ["p", "x"]
    assert for_sandboxes([machine("x", GPU=8.0), plain], {"sandbox": 5}) == []


def test_variables_that_are_forwarded_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    settings = RaySettings(address="a:1", forward=("A_KEY", "NO_SUCH_KEY"))
    with pytest.raises(ServerError, match=r"ray\.forward names NO_SUCH_KEY, which is not set here") as caught:
        _forwarded(settings)
    assert "secret" not in str(caught.value)
    assert _forwarded(RaySettings(address="a:1", forward=("A_KEY",)))["A_KEY"] == "secret"


def test_a_worker_gets_the_variables_and_the_interface_of_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    for name in (*ray_worker.INTERFACES, "A_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    setup({"A_KEY": "secret"})()
    assert (os.environ["A_KEY"], os.environ["GLOO_SOCKET_IFNAME"]) == ("secret", interface_of("127.0.0.1"))
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"
    monkeypatch.delenv("A_KEY")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")


def test_an_address_that_no_interface_has_names_none() -> None:
    assert interface_of("127.0.0.1") in psutil.net_if_addrs()
    assert interface_of("192.0.2.1") is None
