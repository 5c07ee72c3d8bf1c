from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.infra.errors import DamagedError
from nbrl.tasks.environments.mixture import prompts_from
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.selection.pools import PASS_RATES_SCHEMA, drawn_from, pool_of, rated, sizes
from nbrl.tasks.selection.settings import PoolSettings
from tests.tasks.test_select import rewards_of

SETTINGS = PoolSettings(learnable=4, unseen=2, hard=1, easy=1, hard_to=0.25, easy_from=0.75)
NOTHING = PASS_RATES_SCHEMA.empty_table()


def questions_of(**sizes_by_name: int) -> pa.Table:
    rows = [
        {"id": f"{name}:{n}", "question": "?", "answers": ["x"], "ability": "a", "source": "s", "environment": name}
        for name, size in sizes_by_name.items()
        for n in range(size)
    ]
    return table_of(rows)


def rates_of(*rows: tuple[str, float | None, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(PASS_RATES_SCHEMA.names, row, strict=True)) for row in rows], schema=PASS_RATES_SCHEMA)


def drawn(questions: pa.Table, rates: pa.Table, count: int, cursor: int = 0, **weights: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = drawn_from(
        questions, weights or {"q": 1.0}, 7, cursor, count, rates, SETTINGS, 100
    ).prompts.to_pylist()
    return rows


def test_a_pool_is_a_range_of_pass_rates_with_its_ends() -> None:
    found = [pool_of(success, SETTINGS) for success in (None, 0.0, 0.25, 0.26, 0.74, 0.75, 1.0)]
    assert found == ["unseen", "hard", "hard", "learnable", "learnable", "easy", "easy"]


def test_pools_have_turns_by_their_weights_and_the_question_asked_longest_ago_comes_first() -> None:
    seen = [(f"q:{n}", rate, 9 - n % 10, 1) for n, rate in enumerate([0.0] * 10 + [0.5] * 10 + [1.0] * 10)]
    prompts = drawn(questions_of(q=60), rates_of(*seen), 16)
    number = [int(row["id"].removeprefix("q:")) for row in prompts]
    assert Counter(each // 10 if each < 30 else "unseen" for each in number) == {0: 2, 1: 8, 2: 2, "unseen": 4}
    assert [each for each in number if each // 10 == 1] == [19, 18, 17, 16, 15, 14, 13, 12]
    assert [row["group"] for row in prompts if row["id"] == "q:19"] == ["q:19.1"]


def test_nothing_was_asked_so_the_order_is_that_of_the_run() -> None:
    questions = questions_of(q=20)
    expected = prompts_from(questions, {"q": 1.0}, 7, 0, 12).prompts
    assert drawn(questions, NOTHING, 12) == expected.to_pylist()


def test_the_turn_of_an_empty_pool_goes_to_another_and_weight_0_comes_last() -> None:
    only = PoolSettings(learnable=1, unseen=0, hard=0, easy=0)
    prompts = drawn_from(
        questions_of(q=3), {"q": 1.0}, 0, 0, 3, rates_of(("q:1", 0.5, 0, 1), ("q:2", 1.0, 0, 1)), only, 1
    ).prompts
    assert prompts["id"].to_pylist() == ["q:1", "q:0", "q:2"]


def test_a_later_round_of_an_iteration_asks_what_the_earlier_ones_did_not() -> None:
    questions, rates = questions_of(q=20), NOTHING
    seen = set[str]()
    for _ in range(3):
        prompts = drawn_from(questions, {"q": 1.0}, 7, 0, 6, rates, SETTINGS, 4).prompts
        ids = set(prompts["id"].to_pylist())
        assert not ids & seen
        seen |= ids
        groups = {group: [1.0, 0.0] for group in prompts["group"].to_pylist()}
        rates = rated(rates, prompts, rewards_of(groups), 4)
    assert len(drawn_from(questions, {"q": 1.0}, 7, 0, 6, rates, SETTINGS, 4).prompts) == 6


@pytest.mark.parametrize("column", ["id", "iteration", "asked"])
def test_a_table_that_is_no_pass_rates_is_damaged(column: str) -> None:
    rates = rates_of(("q:1", 0.5, 0, 1))
    spoilt = rates.set_column(rates.schema.get_field_index(column), rates.schema.field(column), pa.nulls(1, rates[column].type))
    for wrong in (spoilt, rates.drop_columns([column])):
        with pytest.raises(DamagedError, match="the table of pass rates is not one"):
            drawn(questions_of(q=3), wrong, 2)


@given(
    size=st.integers(1, 9),
    count=st.integers(1, 30),
    cursor=st.integers(0, 40),
    rates=st.dictionaries(st.integers(0, 8), st.none() | st.sampled_from([0.0, 0.5, 1.0])),
)
def test_every_environment_keeps_its_share_and_no_group_comes_twice(
    size: int, count: int, cursor: int, rates: dict[int, float | None]
) -> None:
    questions = questions_of(big=9, small=size)
    seen = rates_of(*((f"big:{n}", rate, n, n + 1) for n, rate in rates.items()))
    prompts = drawn(questions, seen, count, cursor, big=2.0, small=1.0)
    plain = prompts_from(questions, {"big": 2.0, "small": 1.0}, 7, cursor, count).prompts
    assert [row["environment"] for row in prompts] == plain["environment"].to_pylist()
    assert len({row["group"] for row in prompts}) == count
    per_question = Counter(row["id"] for row in prompts)
    for name in ("big", "small"):
        times = [per_question[id_] for id_ in questions["id"].to_pylist() if id_.startswith(name)]
        assert max(times) - min(times) <= 1


def test_pass_rates_are_those_of_the_last_group_and_one_that_failed_says_nothing() -> None:
    before = rates_of(("a", 1.0, 0, 2), ("b", None, 1, 1), ("c", 0.0, 1, 1))
    prompts = pa.table({"group": ["a.2", "b.1", "d"], "id": ["a", "b", "d"]})
    after = rated(before, prompts, rewards_of({"a.2": [1, 0], "b.1": [0, 0], "d": [1, 1]}), 4)
    assert after.to_pylist() == rates_of(("a", 0.5, 4, 3), ("b", 0.0, 4, 2), ("c", 0.0, 1, 1), ("d", 1.0, 4, 1)).to_pylist()
    failed = rated(before, prompts, rewards_of({"a.2": [1, 0], "b.1": [0, 0], "d": [1, 1]}, "failed"), 4)
    assert [(row["success"], row["asked"]) for row in failed.to_pylist()] == [(1.0, 3), (None, 2), (0.0, 1), (None, 1)]
    assert sizes(after, SETTINGS) == {"learnable": 1, "hard": 2, "easy": 1}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hard_to": 0.8, "easy_from": 0.7}, "set it below easy_from"),
        (dict.fromkeys(("learnable", "unseen", "hard", "easy"), 0), "raise one"),
    ],
)
def test_pools_that_could_draw_nothing_are_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PoolSettings.model_validate(values)
