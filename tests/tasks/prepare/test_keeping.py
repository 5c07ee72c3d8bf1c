"""The output folder, finished stages and the card."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import BrokenInvariantError, ConfigError
from nbrl.tasks.prepare.card import card, finished, markdown, write
from nbrl.tasks.prepare.preflight import check, plan
from nbrl.tasks.prepare.rows import kept, marked, split
from nbrl.tasks.prepare.settings import DifficultySettings, EvaluationFile, PrepareSettings, QuestionSource, RateSettings
from nbrl.tasks.prepare.stages import check_whole, identity, stage_name
from tests.tasks.prepare.doubles import evaluated, question, table


def settings(folder: Path, **more: Any) -> PrepareSettings:
    for name in ("a", "b"):
        (folder / f"{name}.jsonl").write_text(json.dumps({"question": f"{name}?", "answers": "x"}) + "\n")
    sources = tuple(QuestionSource(name=name, path=folder / f"{name}.jsonl", licence="MIT") for name in "ab")
    return PrepareSettings(**{"sources": sources} | more)


def test_a_preparation_is_its_settings_and_the_bytes_of_its_files(tmp_path: Path) -> None:
    first = identity(settings(tmp_path))
    other = tmp_path / "elsewhere"
    other.mkdir()
    assert identity(settings(other, ray={"num_cpus": 1})) == first
    (tmp_path / "a.jsonl").write_text('{"question": "new?", "answers": "x"}\n')
    changed = identity(PrepareSettings(sources=settings(other).sources[:1]))
    assert changed != first


def test_other_answers_of_an_evaluation_make_another_preparation(tmp_path: Path) -> None:
    chosen = settings(tmp_path, difficulty=DifficultySettings(evaluation="hard", root=str(tmp_path / "storage")))
    evaluated(tmp_path / "storage", "hard", [])
    first = identity(chosen)
    evaluated(tmp_path / "storage", "hard", [{"question": "a?", "success": 1.0}])
    assert identity(chosen) != first


def test_preflight_finds_what_would_fail_hours_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    rater = RateSettings(base_url="http://127.0.0.1:1/v1", name="m", key="NO_KEY")
    for more, words in [
        ({"rate": rater}, "NO_KEY"),
        ({"evaluation": (EvaluationFile(name="e", path=tmp_path / "e.csv"),)}, "evaluation file 'e': there is no file"),
        ({"difficulty": DifficultySettings(evaluation="none")}, "there is no finished evaluation 'none' in .nbrl/storage"),
        ({"rate": rater.model_copy(update={"key": None}), "ratings": tmp_path / "a.jsonl"}, "is a file"),
    ]:
        with pytest.raises(ConfigError, match=words):
            check(settings(tmp_path, **more), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_plan_counts_requests(tmp_path: Path) -> None:
    evaluated(tmp_path / "storage", "hard", [])
    rater = RateSettings(base_url="http://127.0.0.1:1/v1", name="m", key=None)
    chosen = settings(tmp_path, rate=rater, difficulty=DifficultySettings(evaluation="hard", root=str(tmp_path / "storage")))
    said = plan(chosen, Path("out"), check(chosen, tmp_path / "out"))
    assert "source a: 1 rows, of which 1 have a question and an answer" in said
    assert "rate: m at http://127.0.0.1:1/v1, at most 2 questions" in said
    assert "difficulty: by the answers of the evaluation hard" in said
    assert "nothing is decontaminated" in said


def test_a_stage_is_named_by_all_that_decides_it() -> None:
    changed = [("split", {"seed": 2}, []), ("rate", {"seed": 1}, []), ("split", {"seed": 1}, ["digest"])]
    assert len({stage_name("split", {"seed": 1}, []), *(stage_name(*change) for change in changed)}) == 4


def test_a_stage_must_give_back_every_row() -> None:
    rows = table(question("a:1", "q?"), question("a:2", "r?"))
    check_whole("rate", rows, marked(rows, [None, ("unrated", "")]))
    with pytest.raises(BrokenInvariantError, match="the stage rate took 2 rows and gave back others"):
        check_whole("rate", rows, rows.slice(1))


@given(st.lists(st.sampled_from([None, "duplicate", "no answer"]), min_size=1, max_size=30), st.data())
def test_counts_add_up(tmp_path_factory: pytest.TempPathFactory, reasons: list[str | None], data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("card")
    wanted = identity(settings(folder))
    names = data.draw(st.lists(st.sampled_from("ab"), min_size=len(reasons), max_size=len(reasons)))
    rows = table(*(question(f"{name}:{n}", "q?", source=name) for n, name in enumerate(names)))
    first = marked(rows, [each and (each, "") for each in reasons])
    second = marked(kept(first), [None] * len(kept(first)))
    results = {"unify": first, "decontaminate": second, "split": split(kept(second), settings(folder).split)}
    figures = card(results, wanted)
    for each in figures["stages"]:
        assert each["in"] == each["kept"] + sum(each["dropped"].values())
    assert sum(figures["questions"].values()) == reasons.count(None)
    for source in figures["sources"]:
        assert source["rows"] == source["kept"]["split"] + sum(n for each in source["dropped"].values() for n in each.values())
    with pytest.raises(BrokenInvariantError, match="rows came in"):
        card({**results, "unify": pa.concat_tables([first, marked(table(question("a:lost", "q?")), [None])])}, wanted)


def test_outputs_are_found_until_one_is_lost(tmp_path: Path) -> None:
    wanted = identity(settings(tmp_path, split={"train": 0.9, "held_out": 0.1, "test": 0}))
    rows = marked(table(*(question(f"a:{n}", f"a | {n}?") for n in range(40))), [None] * 40)
    results = {"unify": rows, "decontaminate": rows, "split": split(kept(rows), settings(tmp_path).split)}
    storage = Storage(StorageSettings(root=str(tmp_path / "out")))
    assert finished(storage) is None
    figures = write(storage, results, wanted)
    assert finished(storage) == figures
    assert sorted(figures["outputs"]) == ["dropped.parquet", "held_out.parquet", "train.parquet"]
    assert markdown(figures, figures["outputs"]) == (tmp_path / "out/card.md").read_text()
    (tmp_path / "out/train.parquet").unlink()
    assert finished(storage) is None
