"""A night: what was kept is prepared, a policy learns from it, and it becomes the champion only if it is better."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nbrl.flows.nightly import _trained, check_held_out, settings_in
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.comparison.gate import Gate
from nbrl.tasks.comparison.night import NightReport, NightStart
from nbrl.tasks.environments.world.world import World
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.prepare.preflight import load as load_preparation
from nbrl.tasks.runs.pins import Champion, recorded
from nbrl.tasks.runs.recipes import load
from tests.flows.conftest import SMALL
from tests.flows.typed import nbrl
from tests.processes import check_gone, mark

SCRIPT = """
import sys
from pathlib import Path
from nbrl.flows.cli.run_flow import run_flow
from nbrl.flows.nightly import NightlyOrder
async def night():
    from nbrl.flows import nightly as flow
    from nbrl.flows.nightly import nightly
    if sys.argv[3:]:  # as if every policy were better
        from nbrl.tasks.comparison.gate import Gate
        flow.judge_gain = lambda *_: Gate(None, {}, [])
    return await nightly(NightlyOrder(recipe=Path(sys.argv[1]), night="20260102", home=sys.argv[2]))
print(run_flow(sys.argv[2], night).model_dump_json())
"""
TRAINING = """
base: tiny-cpu
name: mine
environments:
  world: null
  mine: {kind: files, train: kept.jsonl, held_out: held_out.jsonl, rule: number}
"""
PREPARE = """
sources: [{name: kept, path: kept.jsonl, licence: private, rule: number}]
evaluation: [{name: held_out, path: held_out.jsonl}]
deduplicate: {threshold: 1.0}
decontaminate: {threshold: 1.0, shared_words: null}
split: {train: 1, held_out: 0, test: 0}
"""


def written(folder: Path, **fields: object) -> Path:
    """The files of nightly trainings, with questions that the tiny policy can read."""
    settings = {"name": "nights", "recipe": "training.yaml", "environment": "mine", "prepare": "prepare.yaml", **fields}
    (folder / "nightly.yaml").write_text(json.dumps(settings))
    (folder / "training.yaml").write_text(TRAINING)
    (folder / "prepare.yaml").write_text(PREPARE)
    for name, split in (("kept", "train"), ("held_out", "held_out")):
        rows = [
            {"question": each.question, "answers": list(each.answers), "ability": "arithmetic"}
            for each in World.generate(5, split, 24, ("arithmetic",)).questions
        ]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder / "nightly.yaml"


def night(recipe: Path, home: Path, *better: str) -> NightReport:
    line = [sys.executable, "-c", SCRIPT, str(recipe), str(home), *better]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark("night"), check=False)
    check_gone("night")
    assert done.returncode == 0, done.stderr[-3000:]
    return NightReport.model_validate_json(done.stdout.splitlines()[-1])


@pytest.mark.e2e
@pytest.mark.more
@pytest.mark.usefixtures("prefect")
def test_a_night_trains_on_what_was_kept_and_promotes_only_what_is_better(home: Path, tmp_path: Path) -> None:
    settings = [each for each in SMALL if not each.startswith(("environments", "evaluate"))]
    recipe = written(tmp_path, settings=[*settings, "iterations=1"])
    report = night(recipe, home)
    folder = home / "nightly/nights/20260102"
    assert (folder / "questions/train.parquet").is_file()
    assert report.questions == 24
    assert report.run == "nights-20260102"
    assert report.before is not None
    champion = recorded(Storage(StorageSettings(root=f"{home}/storage")), "mine")
    assert (champion is not None) == report.promoted == (not report.reasons)
    page = (folder / "report.md").read_text()
    assert ("**Promoted.**" if report.promoted else "**Not promoted:**") in page
    with (tmp_path / "kept.jsonl").open("a") as file:  # a night that has begun goes on with its own questions
        file.write(json.dumps({"question": "What is 1 + 1?", "answers": ["2"]}) + "\n")
    for _ in range(2):  # what was promoted is found
        again = night(recipe, home, "better")
        assert (again.run, again.promoted, again.questions, again.reasons) == (report.run, True, 24, ())
        champion = recorded(Storage(StorageSettings(root=f"{home}/storage")), "mine")
        assert champion is not None
        assert (champion.run, champion.updates) == (report.run, 1)
        assert "**Promoted.**" in (folder / "report.md").read_text()
        assert "nights-20260102" in again.in_mlflow or "models:/" in again.in_mlflow
    none = written(tmp_path, name="few")
    (tmp_path / "kept.jsonl").unlink()
    assert night(none, home).reasons == ("there are 0 questions to train on, and fewest is 16",)


def test_a_night_that_was_rolled_back_promotes_no_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def champion(run: str) -> Champion:
        checkpoint = f"runs/{run}/checkpoints/000004-e0001-aaaaaa"
        return Champion(recipe="mine", run=run, run_id="x", updates=4, checkpoint=checkpoint, weights="w", promoted=0.0)

    champions = [champion("earlier")]

    async def train(*_: object) -> None: ...

    def promoted(_: object, run: str, __: object) -> Champion:
        champions.append(champion(run))
        return champions[-1]

    for name, double in {
        "_start": lambda *_: (None, "the champion"),
        "read": lambda *_: None,
        "judge_gain": lambda *_: Gate(None, {}, []),
        "checkpoint": lambda *_: "runs/nights-20260102/checkpoints/000004-e0001-aaaaaa",
        "recorded_champion": lambda *_: champions[-1],
        "promote": promoted,
        "show_champion": lambda *_: "there",
    }.items():
        monkeypatch.setattr(f"nbrl.flows.nightly.{name}", double)
    monkeypatch.setattr("nbrl.flows.train.train.fn", train)
    monkeypatch.setattr(NightReport, "judged", lambda report, *_: report)
    settings, config = settings_in(written(tmp_path)), load("tiny-cpu")
    begun = NightStart(questions=20, champion="earlier", updates=4)
    report = NightReport(night="20260102", recipe="mine", questions=20)

    def done() -> NightReport:
        return asyncio.run(_trained(settings, report, begun, tmp_path, str(tmp_path), Storage(config.storage), config))

    assert [done().promoted, done().promoted] == [True, True]  # the second time it is the champion
    champions.append(champions[0])  # as by `nbrl promote --back`
    for _ in range(2):
        assert done().reasons == ("it was promoted before, and another policy has taken its place since",)
    assert champions[-1].run == "earlier"


def test_held_out_questions_that_nothing_keeps_out_are_refused(tmp_path: Path) -> None:
    settings = settings_in(written(tmp_path))
    config = load(settings.recipe, ["environments.mine.held_out=" + str(tmp_path / "held_out.jsonl")])
    check_held_out(settings, config, load_preparation(settings.prepare))
    (tmp_path / "prepare.yaml").write_text(PREPARE.replace("held_out.jsonl", "other.jsonl"))
    with pytest.raises(ConfigError, match=r"held_out\.jsonl, the held-out questions of environments\.mine, under `evaluation`"):
        check_held_out(settings, config, load_preparation(settings.prepare))


def test_too_few_held_out_questions_are_refused_before_a_night(tmp_path: Path) -> None:
    settings = settings_in(written(tmp_path))
    held_out = (tmp_path / "held_out.jsonl").read_text().splitlines()
    config = load(settings.recipe, ["evaluate.questions=19"])
    with pytest.raises(ConfigError, match="asks 19 held-out questions, and 20 at least"):
        check_held_out(settings, config, load_preparation(settings.prepare))
    (tmp_path / "held_out.jsonl").write_text("\n".join(held_out[:7]))
    with pytest.raises(ConfigError, match="asks 7 held-out questions"):
        check_held_out(settings, load(settings.recipe), load_preparation(settings.prepare))


def test_the_shipped_example_can_promote() -> None:
    settings = settings_in(Path(__file__).parents[2] / "examples/nightly/nightly.yaml")
    check_held_out(settings, load(settings.recipe, settings.settings), load_preparation(settings.prepare))


def test_the_settings_of_nights_are_checked_and_lie_beside_their_file(tmp_path: Path) -> None:
    settings = settings_in(written(tmp_path))
    assert settings.recipe == str(tmp_path / "training.yaml")
    assert settings.prepare == tmp_path / "prepare.yaml"
    assert settings_in(written(tmp_path, recipe="tiny-cpu")).recipe == "tiny-cpu"
    with pytest.raises(ConfigError, match="margins"):
        settings_in(written(tmp_path, margins=0.1))


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--keep", "k.jsonl"], "add --right ANSWER"),
        (["--right", "x"], "--right is for --keep"),
        (["--keep", "k.csv", "--right", "x"], "name a file that ends in .jsonl"),
        (["--keep", "nowhere/k.jsonl", "--right", "x"], "is no file that can be written"),
    ],
)
def test_a_question_is_kept_only_with_what_is_right(tmp_path: Path, words: list[str], said: str) -> None:
    done = nbrl("agent", "What?", "--endpoint", "http://127.0.0.1:9/v1", "--no-save", *words, folder=tmp_path)
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "k.jsonl").exists()


@pytest.mark.process
def test_a_server_keeps_questions_only_of_recorded_sessions(tmp_path: Path) -> None:
    done = nbrl("serve", "a-run", "--keep", "k.jsonl", folder=tmp_path)
    assert done.returncode != 0
    assert "--keep is for --record" in " ".join(done.stderr.split())


@pytest.mark.process
def test_nightly_trainings_are_described_by_their_file_alone(tmp_path: Path) -> None:
    assert "need --recipe FILE.yaml" in " ".join(nbrl("schedule", "nightly", "--home", str(tmp_path)).stderr.split())
