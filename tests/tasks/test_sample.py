import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.environments.mixture import prompts_at, prompts_from, turns, visit_order, with_groups
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.seeds import derive_seed


@given(seed=st.integers(0, 99), size=st.integers(1, 40), chunks=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_however_it_is_cut_every_epoch_visits_every_prompt_once(seed: int, size: int, chunks: list[int]) -> None:
    walked: list[int] = []
    for chunk in chunks:
        walked += visit_order(seed, size, len(walked), chunk)
    assert walked == visit_order(seed, size, 0, sum(chunks))
    for start in range(0, len(walked) - size + 1, size):
        assert sorted(walked[start : start + size]) == list(range(size))


def test_epochs_differ_in_order() -> None:
    assert visit_order(0, 50, 0, 50) != visit_order(0, 50, 50, 50)


def test_seeds_depend_on_every_part() -> None:
    assert derive_seed(1, "a", 2) == derive_seed(1, "a", 2)
    assert (
        len(
            {derive_seed(1, "a", 2), derive_seed(1, "a", 3), derive_seed(2, "a", 2), derive_seed(1, "b", 2), derive_seed(1, "a2")}
        )
        == 5
    )


def test_a_batch_across_an_epochs_edge_has_no_group_twice() -> None:
    rows = visit_order(0, 12, 8, 8)
    prompts = pa.table({"id": [str(row) for row in rows]})
    groups = with_groups(prompts, [(8 + step) // 12 for step in range(8)])["group"].to_pylist()
    assert len(set(groups)) == 8
    assert [group for group in groups if "." not in group] == [str(row) for row in rows[:4]]


WEIGHTS = st.lists(st.floats(0.05, 20, allow_nan=False), min_size=1, max_size=6)


@given(weights=WEIGHTS, first=st.integers(0, 2_000), count=st.integers(1, 60))
def test_turns_are_a_function_of_the_position_alone(weights: list[float], first: int, count: int) -> None:
    assert turns(weights, first, count) == turns(weights, 0, first + count)[first:]


@given(weights=WEIGHTS, count=st.integers(1, 300))
def test_every_environment_has_its_share_of_any_number_of_turns(weights: list[float], count: int) -> None:
    order = turns(weights, 0, count)
    for number, weight in enumerate(weights):
        mine = [turn for whose, turn in order if whose == number]
        assert mine == list(range(len(mine)))
        assert abs(len(mine) - count * weight / sum(weights)) <= len(weights)


def mixture(sizes: dict[str, int]) -> pa.Table:
    rows = [
        {"id": f"{name}:{n}", "question": "?", "answers": ["x"], "ability": "a", "source": "s", "environment": name}
        for name, size in sizes.items()
        for n in range(size)
    ]
    return table_of(rows)


def test_prompts_of_several_environments_come_by_weight_each_in_epochs_of_its_own() -> None:
    questions, weights = mixture({"big": 12, "small": 4}), {"big": 3.0, "small": 1.0, "evaluated": 0.0}
    prompts = prompts_at(questions, weights, 7, 0, 64)
    names: list[str] = prompts["environment"].to_pylist()
    assert (names.count("big"), names.count("small")) == (48, 16)
    assert [names[start : start + 4].count("small") for start in range(0, 64, 4)] == [1] * 16
    for name, size in (("big", 12), ("small", 4)):
        ids = [one for one, whose in zip(prompts["id"].to_pylist(), names, strict=True) if whose == name]
        for start in range(0, len(ids), size):
            assert len(set(ids[start : start + size])) == size
    assert len(set(prompts["group"].to_pylist())) == 64
    parts = [prompts_at(questions, weights, 7, cursor, 16) for cursor in range(0, 64, 16)]
    assert pa.concat_tables(parts).equals(prompts)


def test_one_environment_is_asked_in_the_order_of_the_run_whatever_its_weight() -> None:
    questions = mixture({"only": 9})
    expected = [f"only:{row}" for row in visit_order(3, 9, 4, 7)]
    assert prompts_at(questions, {"only": 0.3}, 3, 4, 7)["id"].to_pylist() == expected


@given(
    seed=st.integers(0, 9),
    retired=st.sets(st.sampled_from([f"{name}:{n}" for name in ("big", "small") for n in range(4)])),
    cursor=st.integers(0, 20),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_retired_questions_are_passed_over_wherever_the_walk_is_cut(
    seed: int, retired: set[str], cursor: int, counts: list[int]
) -> None:
    questions, weights = mixture({"big": 7, "small": 4}), {"big": 2.0, "small": 1.0}
    taken, at = [], cursor
    for count in counts:
        prompts, positions = prompts_from(questions, weights, seed, at, count, retired)
        assert len(prompts) == count
        assert prompts["id"][-1].as_py() == prompts_at(questions, weights, seed, at + positions - 1, 1)["id"][0].as_py()
        taken += prompts["group"].to_pylist()
        at += positions
    walk = prompts_at(questions, weights, seed, cursor, at - cursor).to_pylist()
    assert taken == [prompt["group"] for prompt in walk if prompt["id"] not in retired]


def test_where_every_question_is_retired_all_are_asked_again() -> None:
    questions = mixture({"only": 3})
    taken = prompts_from(questions, {"only": 1.0}, 0, 3, 3, {"only:0", "only:1", "only:2"})
    assert taken.positions == 3
    assert sorted(taken.prompts["id"].to_pylist()) == ["only:0", "only:1", "only:2"]
