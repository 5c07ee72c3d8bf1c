"""Three machines with a Ray cluster: b and c hold sandboxes, b the engine or each a half of it, a and c ranks; a
leads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.machines import Machines, lacking

CHECKOUT = Path(__file__).parents[2]
RESOURCES = {"a": '{"rank":1}', "b": '{"sandbox":4,"engine":1,"half":1}', "c": '{"sandbox":4,"rank":1,"half":1}'}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if reason := lacking():
        pytest.skip(reason)
    with Machines(CHECKOUT, tmp_path_factory.mktemp("machines")) as made:
        made.start_ray(RESOURCES)
        yield made
