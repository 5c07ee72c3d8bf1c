"""A run that was published on another machine is verified by this code."""

from pathlib import Path

import pytest

from tests.flows.typed import nbrl

EXAMPLE = Path(__file__).parents[2] / "examples/published/tiny-cpu"


@pytest.mark.process
def test_the_published_run_of_this_repository_is_what_its_records_say() -> None:
    done = nbrl("audit", str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    assert "is what its records say" in done.stdout
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*") if path.is_file()) <= 20_000_000
