import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.environments.mixture import visit_order, with_groups
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
