"""What an evaluation is asked to do, before anything is asked."""

import json
import shutil
from pathlib import Path

import pytest

from nbrl.flows.evaluation_plan import planned
from nbrl.flows.evaluation_request import EvaluationRequest
from nbrl.infra.storage import Storage
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.subject import model_folder
from nbrl.tasks.layout.runs import EVALUATIONS
from nbrl.tasks.model_folder.source import content_digest
from nbrl.tasks.runs.opening import check_continues, open_run
from nbrl.tasks.runs.recipes import load
from tests.agent.tool_server import Said, serving

MODELS = Said({"data": [{"id": "grader"}]})


def files(folder: Path) -> str:
    path = folder / "questions.jsonl"
    path.write_text(json.dumps({"id": "a", "question": "Which year?", "answers": ["1844"]}))
    return f"environments={{mine: {{kind: files, train: {path}, held_out: {path}}}}}"


def order(folder: Path, *overrides: str, **fields: str) -> EvaluationRequest:
    settings = (f"home={folder}/home", f"storage.root={folder}/storage", *overrides)
    return EvaluationRequest.model_validate({"recipe": "tiny-cpu", "overrides": settings} | fields)


@pytest.mark.process
def test_a_judge_is_named_by_its_option_and_changed_by_settings(tmp_path: Path) -> None:
    with serving(MODELS) as server:
        settings = (files(tmp_path), "reward.judge.timeout_s=7", "reward.judge.attempts=1")
        plan = planned(order(tmp_path, *settings, judge=f"{server.url}/v1"))
    judge = plan.config.reward.judge
    assert judge is not None
    assert (judge.base_url, judge.name, judge.key) == (f"{server.url}/v1", "grader", None)
    assert (judge.timeout_s, judge.attempts) == (7, 1)
    mine = plan.config.environments["mine"]
    assert isinstance(mine, FilesEnvironment)
    assert mine.rule == "judge"


def test_a_judge_that_is_away_is_blamed_on_its_own_option(tmp_path: Path) -> None:
    with serving(MODELS) as server:
        url = f"{server.url}/v1"
    with pytest.raises(ConfigError, match=r"nothing answers at .*; start the server or correct --judge$"):
        planned(order(tmp_path, files(tmp_path), judge=url))
    with pytest.raises(ConfigError, match=r"^--judge 'nowhere' is not an address"):
        planned(order(tmp_path, files(tmp_path), judge="nowhere"))
    with serving(Said({"data": []})) as server, pytest.raises(ConfigError, match=r"name it by --judge-model$"):
        planned(order(tmp_path, files(tmp_path), judge=f"{server.url}/v1"))
    with serving(Said(status=401)) as server, pytest.raises(ConfigError, match=r"name that one by --judge-key-env NAME$"):
        planned(order(tmp_path, files(tmp_path), judge=f"{server.url}/v1"))


@pytest.mark.process
def test_a_server_is_not_limited_by_the_policy_and_the_engine_of_the_settings(tmp_path: Path) -> None:
    away = ("agent.context_tokens=4096", f"policy.path={tmp_path}/gone", f"engine.environment={tmp_path}/gone")
    with serving(MODELS) as server:
        plan = planned(order(tmp_path, *away, endpoint=f"{server.url}/v1"))
    assert plan.subject.name == f"grader at {server.url}/v1"
    with pytest.raises(ConfigError, match=r"agent\.context_tokens is 4096 but the policy reads at most"):
        planned(order(tmp_path, "agent.context_tokens=4096"))


@pytest.mark.parametrize("model", ["./nofolder", "../nofolder", "/no/folder", "~/no-such-folder", "a/b/c"])
def test_what_begins_as_a_path_is_a_folder_and_never_a_name_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^--model \S+ is no folder; correct the path, or give owner/name of the hub"):
        planned(order(tmp_path, model=model))


def test_a_refused_name_lists_every_setting_that_differs_in_the_words_of_an_evaluation(tmp_path: Path) -> None:
    settings = [f"storage.root={tmp_path}/storage"]
    began = load("tiny-cpu", settings)
    storage = Storage(began.storage)
    run, _ = open_run(began, "e", storage, kind=EVALUATIONS, policy="p")
    judge = ["reward.judge.base_url=http://127.0.0.1:9/v1", "reward.judge.name=m"]
    now = load("tiny-cpu", [*settings, *judge, "seed=3", "evaluate.samples=7"])
    with pytest.raises(ConfigError) as error:
        check_continues(storage, run, now)
    words = str(error.value)
    assert words.startswith("evaluation 'e' exists with another configuration: ")
    assert 'reward.judge.name is "m", the evaluation began with not set' in words
    assert "reward.judge.rubric" not in words  # it is in neither
    for key in ("seed is 3", "evaluate.samples is 7", "reward.judge.max_tokens is 1024"):
        assert key in words
    for never in ("the run", "null", "more;"):
        assert never not in words
    with pytest.raises(ConfigError, match=r'reward\.judge\.name is not set, the evaluation began with "m"'):
        check_continues(storage, run.model_copy(update={"config": now.model_dump(mode="json")}), began)


def begun_with_another_model(folder: Path) -> tuple[Storage, Path]:
    """The storage of a run `r`, not yet trained, that began with another model than the recipe names; and that folder."""
    other = Path(shutil.copytree(load("tiny-cpu", []).policy.path, folder / "other"))
    _change(other)
    config = load("tiny-cpu", [f"storage.root={folder}/storage", f"policy.path={other}"])
    open_run(config, "r", storage := Storage(config.storage))
    return storage, other


def _change(model: Path) -> None:
    weights = model / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.process
@pytest.mark.parametrize("model", ["r", "r@0"])
@pytest.mark.parametrize("recipe", ["tiny-cpu", ""])
def test_a_run_without_a_checkpoint_is_evaluated_with_the_model_that_it_began_with(
    tmp_path: Path, recipe: str, model: str
) -> None:
    storage, other = begun_with_another_model(tmp_path)
    given = {"overrides": (f"home={tmp_path}/home",), "root": storage.settings.root} if not recipe else {}
    plan = planned(order(tmp_path, recipe=recipe, model=model, **given))
    with model_folder(plan.config, plan.subject) as folder:
        assert (folder, plan.subject.digest) == (other, content_digest(other))
    moved = shutil.move(other, tmp_path / "moved")
    if recipe:
        assert planned(order(tmp_path, f"policy.path={moved}", model=model)).subject == plan.subject
    _change(Path(shutil.copytree(moved, other)))
    with pytest.raises(ConfigError, match=r"other holds another model than run 'r' began with; name .* --set policy\.path="):
        planned(order(tmp_path, recipe=recipe, model=model, **given))


def test_a_root_beside_a_recipe_that_names_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^--root elsewhere changes nothing where there is a recipe, .* storage\.root=elsewhere"
    ):
        planned(order(tmp_path, model="r", root="elsewhere"))


@pytest.mark.process
def test_a_file_of_questions_takes_the_place_of_a_runs_own_and_keeps_its_settings(tmp_path: Path) -> None:
    storage, _ = begun_with_another_model(tmp_path)
    (tmp_path / "mine.csv").write_text("question,answer\nWhich year?,1844\n")
    given = {"recipe": str(tmp_path / "mine.csv"), "overrides": ("rollout.tools.default=[]",), "root": storage.settings.root}
    plan = planned(order(tmp_path, model="r", **given))
    assert (list(plan.config.environments), plan.trajectories, plan.in_process) == (["questions"], 1, False)
    assert plan.config.agent == load("tiny-cpu").agent
    assert plan.name.startswith("mine-r-000000-")
    with pytest.raises(ConfigError, match=r"^--model other is no folder|there is no such folder"):
        planned(order(tmp_path, model="other", **given))
