"""The benchmark of environments: what it prints is whole."""

import importlib
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/environments.py"


@pytest.mark.more
@pytest.mark.process
def test_the_search_of_a_small_corpus_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    benchmark = importlib.import_module(SCRIPT.stem)
    monkeypatch.setattr(benchmark.corpora, "IN_MEMORY", benchmark.corpora.IN_MEMORY)  # it is set during the measurement
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--passages", "1000", "--rounds", "1", "--together", "2", "--queries", "3"])
    benchmark.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["part"], found["passages"], found["tenth_passages"]) == ("search", 1000, 100)
    for way in ("disk", "disk_tenth", "memory_tenth"):
        for figure in ("first_hit_s", "query_ms", "rss_mb", "pss_mb", "anonymous_mb"):
            assert found[f"{way}_{figure}"] > 0
    assert min(found[key] for key in ("index_s", "index_mb", "text_mb", "index_peak_mb", "shared_pss_mb")) > 0
    assert found["machine"]
