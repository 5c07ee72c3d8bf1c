"""What a command's options make of tools and passages."""

import json
from pathlib import Path

import pytest

from nbrl.flows.ask.tools import ToolOptions
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.rollout import corpora

PASSAGES = ["one\u2028line", "next\x85line", "page\x0cline"]


def test_a_passage_may_hold_other_ends_of_lines_than_a_newline(tmp_path: Path) -> None:
    rows = tmp_path / "corpus.jsonl"
    rows.write_text("\r\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in PASSAGES[:2]), encoding="utf-8-sig")
    assert ToolOptions(corpus=rows).passages() == PASSAGES[:2]
    lines = tmp_path / "corpus.txt"
    lines.write_text("\n\n".join(PASSAGES) + "\n", encoding="utf-8")
    assert ToolOptions(corpus=lines).passages() == PASSAGES


def test_half_a_character_in_a_passage_is_a_question_mark(tmp_path: Path) -> None:
    rows = tmp_path / "corpus.jsonl"
    rows.write_text('"Tilo \\ud800 was born"\n')
    assert ToolOptions(corpus=rows).open_corpus(print).retrieve("tilo", 1) == ["Tilo ? was born"]


def test_without_a_corpus_there_is_nothing_to_find() -> None:
    assert len(ToolOptions().open_corpus(print)) == 0


def test_a_corpus_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read as text"):
        ToolOptions(corpus=tmp_path / "none.txt").open_corpus(print)


@pytest.mark.process
def test_a_large_corpus_is_indexed_once_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpora, "IN_MEMORY", 2)
    lines, said = tmp_path / "corpus.txt", list[str]()
    lines.write_text("Tilo was born\nKeldra lies on the Vorn\n")
    for _ in range(2):
        assert ToolOptions(corpus=lines).open_corpus(said.append).retrieve("vorn", 1) == ["Keldra lies on the Vorn"]
    assert len(said) == 2
    assert (tmp_path / ".nbrl" / "corpora").is_dir()


def test_a_search_that_is_simulated_from_answers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text("default: [search]\nsearch: {engine: simulated, model: {base_url: 'http://127.0.0.1:1', name: m}}\n")
    with pytest.raises(ConfigError, match="simulates search from a question's answers, which nobody knows here"):
        ToolOptions(file=file).settings(None, None, attached=False)
