"""Splits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.prepare.rows import SPLITS, kept, part, split, split_of
from nbrl.tasks.prepare.settings import SplitSettings
from tests.tasks.prepare.doubles import question, table

NAMES = st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=60, unique=True)


@given(NAMES, st.integers(0, 5))
def test_a_split_is_a_partition(names: list[str], seed: int) -> None:
    rows = table(*(question(name, "q?") for name in names))
    parts = [part(kept(split(rows, SplitSettings(seed=seed))), name) for name in SPLITS]
    assert sorted(name for each in parts for name in each["id"].to_pylist()) == sorted(names)
    assert all(each.schema == rows.schema for each in parts)


@given(NAMES, st.integers(1, 59), st.integers(0, 5))
def test_a_question_stays_in_its_split_when_others_come(names: list[str], count: int, seed: int) -> None:
    settings = SplitSettings(seed=seed)

    def dealt(names: list[str]) -> dict[str, str]:
        found = split(table(*(question(name, "q?") for name in names)), settings)
        return dict(zip(found["id"].to_pylist(), found["split"].to_pylist(), strict=True))

    few, all_ = dealt(names[:count]), dealt(names[::-1])
    assert few.items() <= all_.items()


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.5, 0.5, 0), (0.6, 0, 0.4), (1, 0, 0)])
def test_shares_are_about_what_was_asked_for(shares: tuple[float, float, float]) -> None:
    settings = SplitSettings(train=shares[0], held_out=shares[1], test=shares[2])
    dealt = [split_of(f"a:{n}", settings) for n in range(4000)]
    for name, share in zip(SPLITS, shares, strict=True):
        assert abs(dealt.count(name) / 4000 - share) < (0.03 if share not in (0, 1) else 1e-9)
