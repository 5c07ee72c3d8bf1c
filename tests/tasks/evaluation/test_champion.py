from pathlib import Path

import pyarrow as pa

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.evaluation.answers import SCHEMA
from nbrl.tasks.evaluation.deliver import champion_score, unusable_champion
from nbrl.tasks.evaluation.scores import scores
from nbrl.tasks.evaluation.summary import EvaluationSummary, Subject
from nbrl.tasks.layout.runs import EvaluationLayout, champion_of
from nbrl.tasks.runs.pins import Champion
from tests.tasks.evaluation.test_scores import row


def evaluated(storage: Storage, name: str, run: str, right: int, finished: float, mode: str = "agent") -> EvaluationSummary:
    answers = pa.Table.from_pylist([row(f"q{n}", 0, "42", n < right) for n in range(4)], schema=SCHEMA)
    summary = EvaluationSummary(
        name=name,
        recipe="r",
        subject=Subject(name=f"{run}@3", digest=run, run=run, updates=3),
        mode=mode,
        samples=1,
        environments=["e"],
        metrics={},
        scores=scores(answers),
        trajectories=4,
        sampled_tokens=12,
        failed=0,
        unscored=0,
        seconds=1.0,
        processor_seconds=0.0,
        gpu_seconds=0.0,
        finished=finished,
    )
    storage.write_json(EvaluationLayout(name).summary, summary.model_dump(mode="json"))
    return summary


def test_a_new_model_is_compared_with_the_champion_as_it_was_evaluated_last_in_the_same_way(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    new = evaluated(storage, "new", "b", 1, 9.0)
    assert champion_score(storage, new) is None
    made = Champion(recipe="r", run="a", run_id="x", updates=3, checkpoint="runs/a/c", weights="w", promoted=0.0)
    storage.write_json(champion_of("r"), made.model_dump(mode="json"))
    assert champion_score(storage, new) is None
    evaluated(storage, "old", "a", 2, 1.0)
    evaluated(storage, "newer", "a", 3, 2.0)
    evaluated(storage, "direct", "a", 4, 3.0, "direct")
    assert champion_score(storage, new) == 0.75
    storage.write_bytes(EvaluationLayout("damaged").summary, b"no summary")
    assert champion_score(storage, new) == 0.75
    assert champion_score(storage, evaluated(storage, "again", "a", 3, 10.0)) is None


def test_a_champion_is_no_measure_for_other_questions(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    made = Champion(recipe="r", run="a", run_id="x", updates=3, checkpoint="runs/a/c", weights="w", promoted=0.0)
    storage.write_json(champion_of("r"), made.model_dump(mode="json"))
    new = evaluated(storage, "new", "b", 1, 9.0)
    evaluated(storage, "old", "a", 2, 1.0)
    for name, digest in (("new", "1" * 64), ("old", "1" * 64)):
        data = EvaluationLayout(name).data
        storage.write_json(data.digests, {data.split("held_out"): digest})
    assert champion_score(storage, new) == 0.5
    storage.write_json(EvaluationLayout("old").data.digests, {EvaluationLayout("old").data.split("held_out"): "2" * 64})
    assert champion_score(storage, new) is None


def test_a_champion_whose_files_are_gone_is_a_sentence(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    assert unusable_champion(storage, "r") == ""
    made = Champion(recipe="r", run="a", run_id="x", updates=3, checkpoint="runs/a/c", weights="w", promoted=0.0)
    storage.write_json(champion_of("r"), made.model_dump(mode="json"))
    assert "the champion of 'r' cannot be used" in unusable_champion(storage, "r")
    assert "promote another with `nbrl promote a@UPDATES --root " in unusable_champion(storage, "r")
    storage.write_bytes(champion_of("r"), b"{}")
    assert "names no champion" in unusable_champion(storage, "r")
