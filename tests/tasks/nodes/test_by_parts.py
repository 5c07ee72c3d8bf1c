"""What is computed of a round's trajectories part by part."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.infra.parts import DIGEST, PART, ROW
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.nodes.reward import over_parts
from nbrl.tasks.rollout import chunks as module
from nbrl.tasks.rollout.chunks import blocks_of
from tests.tasks.nodes.doubles import DoubleRunners


def index(parts: list[int]) -> pa.Table:
    """Of trajectories that lie in the parts with these numbers."""
    rows = [{"id": str(n), PART: f"p{part}", DIGEST: "d", ROW: parts[:n].count(part)} for n, part in enumerate(parts)]
    return pa.Table.from_pylist(rows)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_blocks_are_of_whole_parts_and_no_larger_than_need_be(parts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", 8)
        blocks = [block[PART].to_pylist() for block in blocks_of(index(parts))]
    assert sorted(part for block in blocks for part in block) == sorted(f"p{part}" for part in parts)
    homes = {part: number for number, block in enumerate(blocks) for part in block}
    assert all(homes[part] == number for number, block in enumerate(blocks) for part in block)
    for number, block in enumerate(blocks):
        assert block
        last = block.count(block[-1])
        assert len(block) - last < 8
        assert len(block) >= 8 or number == len(blocks) - 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_the_result_is_in_the_order_of_the_index(parts: list[int]) -> None:
    def named(block: pa.Table, suffix: str) -> pa.Table:
        return pa.table({"trajectory": block["id"], "said": [each + suffix for each in block["id"].to_pylist()]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", 4)
        runners = DoubleRunners(Storage(StorageSettings(root="unused")), "")
        found = over_parts(runners, index(parts), named, ("!",), "trajectory")
    assert found["said"].to_pylist() == [f"{number}!" for number in range(len(parts))]
