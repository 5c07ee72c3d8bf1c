"""Options of `nbrl promote` that cannot be together."""

from pathlib import Path

import pytest

from tests.flows.typed import nbrl


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a run, or with --back a recipe"),
        (["r", "--back", "tiny"], "name a run, or with --back a recipe"),
        (["r", "--margin", "0.1"], "--margin is for --if-better"),
        (["--back", "tiny", "--if-better"], "--margin is for --if-better, and that is for a run"),
        (["--back", "tiny"], "the recipe 'tiny' has no champion"),
        (["r", "--if-better"], "there is no run 'r'"),
    ],
)
def test_a_promotion_of_nothing_or_of_two_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    done = nbrl("promote", *words, "--home", str(tmp_path))
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())
