"""The addresses on which servers listen."""

import pytest

from nbrl.infra.errors import ServerError
from nbrl.infra.process.identity import check_host, here, is_local


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_an_address_of_this_machine_can_be_listened_on(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a" * 300])
def test_an_address_of_another_machine_is_refused_in_a_sentence(host: str) -> None:
    with pytest.raises(ServerError, match=r"^--host \S+: this machine cannot listen there \("):
        check_host(host)


def test_a_server_on_all_addresses_is_asked_on_this_machine() -> None:
    assert (here("0.0.0.0"), here("::1"), here("10.0.0.1")) == ("127.0.0.1", "[::1]", "10.0.0.1")
    assert is_local("127.0.0.1")
    assert not is_local("0.0.0.0")
