"""Recipes of warm starts: what is said acts or is refused before anything is written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nbrl.infra.errors import StorageError
from nbrl.infra.manifest import write_manifest
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.opening import open_run
from nbrl.tasks.runs.recipes import load as load_training
from nbrl.tasks.warmstart.orders import check
from nbrl.tasks.warmstart.recipe import WarmstartArguments, names, source_of
from nbrl.tasks.warmstart.recipe import load as load_given
from nbrl.tasks.warmstart.settings import SupervisedSettings, WarmstartSettings
from nbrl.tasks.warmstart.start import training_of
from nbrl.tasks.warmstart.work_folder import Block, WarmstartPlan, WorkFolder, check_free, identity, opened
from nbrl.tasks.warmstart.work_folder import check as check_folder

NOWHERE = Storage(StorageSettings(root="/nowhere"))
TINY = Path(__file__).parents[3] / "infra" / "policies" / "tiny"


def load(recipe: str | None, overrides: list[str], start: str | None = None) -> WarmstartSettings:
    return load_given(WarmstartArguments(recipe, start), overrides, NOWHERE)


def test_every_shipped_recipe_is_valid_and_names_a_training() -> None:
    assert "tiny" in names()
    for name in names():
        settings = load(name, ["training=tiny-cpu"] if name == "any" else [], None if "tiny" in name else str(TINY))
        load_training(settings.training)
        assert WarmstartSettings.model_validate(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["batch=0"], "greater than or equal to 1"),
        (["step=5"], "unknown key 'step'"),
        (["steps"], "key=value"),
        (["start=somewhere"], "leave one of them out"),
        (["update.loss.kind=ppo"], "unknown key 'update.loss'"),
        (["phases.habits.demonstrations.world.kind=magic"], "must be one of"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load("tiny", overrides)


def test_a_recipe_without_a_model_asks_for_one() -> None:
    with pytest.raises(ConfigError, match="name the model to start from with --from"):
        load("smollm2-135m", [])
    with pytest.raises(ConfigError, match=r"there is no recipe 'smolm'.*did you mean|there are"):
        load("smolm", [])


def test_the_learning_rate_ends_with_the_last_step() -> None:
    settings = SupervisedSettings(lr=1.0, warmup=0.1).for_learner(100)
    assert (settings.warmup_steps, settings.lr_decay_steps, settings.kl_coefficient) == (10, 100, 0.0)
    for steps in (1, 2, 3):
        assert SupervisedSettings().for_learner(steps).lr == 2e-4


def test_a_source_is_told_by_its_name(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    (tmp_path / "talk.jsonl").touch()
    assert source_of("world", storage) == {"kind": "world"}
    assert source_of(str(tmp_path / "talk.jsonl"), storage)["kind"] == "chat"
    assert source_of(str(tmp_path / "missing.parquet"), storage)["kind"] == "recorded"
    assert source_of(str(tmp_path), storage)["kind"] == "recorded"
    with pytest.raises(ConfigError, match="there are no demonstrations 'nobody'"):
        source_of("nobody", storage)


def test_a_name_of_a_run_and_a_folder_means_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path / "root")))
    open_run(load_training("tiny-cpu", ["environments.world.train=8", "rollout.prompts=8"]), "mine", storage)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert source_of("mine", storage) == {"kind": "run", "name": "mine", "root": str(tmp_path / "root")}
    assert source_of("./mine", storage) == {"kind": "recorded", "path": str(tmp_path / "mine")}


def test_a_run_and_a_recipe_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    few = ["environments.world.train=8", "rollout.prompts=8"]
    for name in ("mine", "tiny-cpu"):
        open_run(load_training("tiny-cpu", [*few, "agent.max_steps=3"]), name, storage)

    def given(overrides: list[str] | None = None, **named: str) -> WarmstartSettings:
        return load_given(WarmstartArguments(**{"start": str(TINY), **named}), overrides or [], storage)

    assert given(training="mine").training == given(start="mine").training == "runs/mine"
    run, recipe = given(start="tiny-cpu"), given(["training=tiny-cpu"])
    assert run.training == given(training="runs/tiny-cpu").training == "runs/tiny-cpu"
    assert training_of(run, storage).agent.max_steps == 3
    assert training_of(recipe, storage).agent.max_steps != 3
    with pytest.raises(ConfigError, match="there are a recipe and a run of this name; give runs/tiny-cpu for the run"):
        given(training="tiny-cpu")


def test_a_folder_beside_a_recipe_is_not_taken_for_its_training(tmp_path: Path) -> None:
    (tmp_path / "tiny-cpu").mkdir()
    (tmp_path / "mine.yaml").write_text("base: tiny\ntraining: tiny-cpu")
    assert load(str(tmp_path / "mine.yaml"), []).training == "tiny-cpu"


def test_a_name_that_is_too_long_is_refused_in_a_sentence() -> None:
    with pytest.raises(StorageError, match="is too long for a path; give one with names of at most 255 bytes"):
        source_of("a" * 300, NOWHERE)


def _broken(folder: Path, name: str, **changed: object) -> str:
    """The tiny policy with other entries in its config.json."""
    shutil.copytree(TINY, folder / name)
    config = folder / name / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    return str(folder / name)


def test_a_model_that_does_not_suit_agent_or_learner_is_refused_before_work_begins(tmp_path: Path) -> None:
    storage, training = Storage(StorageSettings(root=str(tmp_path))), load_training("tiny-cpu")
    for start, overrides, says in (
        (_broken(tmp_path, "short", max_position_embeddings=64), [], "the policy reads at most 64 tokens"),
        (_broken(tmp_path, "small", vocab_size=10), [], "more tokens than the model's vocab_size"),
        (_broken(tmp_path, "deep", num_hidden_layers=99), [], "4 layer_types but num_hidden_layers 99"),
        (str(TINY), ["update.lora.rank=4", "update.lora.target_modules=[nothing]"], "no linear layers named 'nothing'"),
        (str(TINY), ["update.device=cuda"], "need a GPU each"),
    ):
        settings = load_given(WarmstartArguments(start=start, training="tiny-cpu"), overrides, storage)
        with pytest.raises(ConfigError, match=says):
            check(settings, training, storage, tmp_path / "out", tmp_path)


def _identity(settings: WarmstartSettings, start: str = "digest") -> dict[str, Any]:
    return identity(settings, load_training("smollm2-135m"), start)


def _begun(work: WorkFolder, blocks: int) -> WarmstartPlan:
    tables = [table for block in range(blocks) for table in (work.trajectories(block), work.advantages(block))]
    plan = WarmstartPlan(blocks=[Block("habits", 1)] * blocks, demonstrations={"habits": (48, 0)})
    work.begin(plan, {table: work.storage.write_bytes(table, table.encode()) for table in tables})
    return plan


def _train(work: WorkFolder, block: int, losses: dict[str, float]) -> None:
    made = work.path / work.checkpoint(block)
    (made / "hf").mkdir(parents=True)
    (made / "hf/model").write_text(f"weights {block}")
    write_manifest(made)
    work.keep(block, losses)


def test_another_warm_start_in_the_same_place_is_refused_and_the_same_one_goes_on(tmp_path: Path) -> None:
    out, settings = tmp_path / "out", load("smollm2-135m", [], str(TINY))
    with opened(out, _identity(settings)) as work:
        plan = _begun(work, 3)
    with opened(out, _identity(settings)) as work:
        assert work.plan() == plan
    with pytest.raises(ConfigError, match="holds another warm start: batch is 3"):
        check_folder(out, _identity(load("smollm2-135m", ["batch=3"], str(TINY))))
    with pytest.raises(ConfigError, match='digest of the model to start from is "other"'):
        check_folder(out, _identity(settings, "other"))
    out.mkdir()
    with pytest.raises(ConfigError, match="exists; name a folder that does not"):
        check_folder(out, _identity(settings))


def test_an_unfinished_warm_start_goes_on_from_its_last_checkpoint_or_begins_anew_without_it(tmp_path: Path) -> None:
    said: list[str] = []
    work = WorkFolder(tmp_path / "out", said.append)
    plan = _begun(work, 3)
    assert work.trained(plan) == (0, {})
    _train(work, 0, {"copying": 2.0})
    _train(work, 1, {"copying": 2.0, "habits": 1.0})
    assert work.trained(plan) == (2, {"copying": 2.0, "habits": 1.0})
    assert [path.name for path in (work.path / "checkpoints").iterdir()] == ["0001"]
    shutil.rmtree(work.path / work.checkpoint(1))
    assert work.trained(plan) == (0, {})
    assert len(said) == 1
    assert said[0].startswith("nbrl: the training up to block 1 is done again, for what it made is lost: ")
    (work.path / work.advantages(2)).unlink()
    assert work.plan() is None


def test_what_a_process_that_was_killed_at_its_end_made_is_not_in_the_way(tmp_path: Path) -> None:
    out, wanted = tmp_path / "out", _identity(load("smollm2-135m", [], str(TINY)))
    with opened(out, wanted) as work:
        _begun(work, 1)
        _train(work, 0, {"habits": 1.0})
        assert work.finish() is None
        work.end(0, {"habits": 1.0})
        (work.path / work.checkpoint(0) / "hf").rename(out)  # and then it was killed
    check_folder(out, wanted)
    with opened(out, wanted) as work:
        assert work.finish() == {"habits": 1.0}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "model").read_text() == "weights 0"


def test_files_of_demonstrations_are_read_before_work_begins(tmp_path: Path) -> None:
    storage, training = Storage(StorageSettings(root=str(tmp_path))), load_training("smollm2-135m")
    (tmp_path / "talk.jsonl").write_text('{"messages": []}')
    (tmp_path / "told.parquet").write_text("no table")
    for name, says in (("talk.jsonl", "row 1 of .* has no messages"), ("told.parquet", "told.parquet cannot be read")):
        settings = load_given(
            WarmstartArguments(start=str(TINY), training="tiny-cpu", demonstrations=str(tmp_path / name)), [], NOWHERE
        )
        with pytest.raises(ConfigError, match=says):
            check(settings, training, storage, tmp_path / "out", tmp_path)


def test_what_fails_before_there_is_a_plan_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to learn"), opened(tmp_path / "out", _identity(load("tiny", []))):
        raise ConfigError("nothing to learn")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_demonstrations_that_changed_is_another_warm_start(tmp_path: Path) -> None:
    talk = tmp_path / "talk.jsonl"
    talk.write_text("one")
    settings = load_given(WarmstartArguments(start=str(TINY), training="tiny-cpu", demonstrations=str(talk)), [], NOWHERE)
    before = _identity(settings)
    talk.write_text("two")
    (differing,) = [key for key, value in _identity(settings).items() if before[key] != value]
    assert differing == f"SHA-256 of {talk}"


def test_an_output_that_can_be_no_folder_or_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "o.unfinished").symlink_to("elsewhere")
    for name, says in (("x" * 300, "can be no folder"), ("link", "exists"), ("o", "is a link")):
        with pytest.raises(ConfigError, match=says):
            check_free(tmp_path / name)


def test_an_unknown_model_or_environment_is_refused(tmp_path: Path) -> None:
    storage, training = Storage(StorageSettings(root=str(tmp_path))), load_training("smollm2-135m")
    with pytest.raises(ConfigError, match="there is no model 'nowhere'"):
        check(load("smollm2-135m", [], "nowhere"), training, storage, tmp_path / "out", tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"phases\.habits\.demonstrations\.world\.environment 'wrld' is none of the training's; did you mean 'world'",
    ):
        check(
            load("smollm2-135m", ["phases.habits.demonstrations.world.environment=wrld"], str(TINY)),
            training,
            storage,
            tmp_path / "out",
            tmp_path,
        )


def test_without_a_recipe_a_model_is_taught_with_care_and_none_is_made_tiny(tmp_path: Path) -> None:
    taught, made = load_given(WarmstartArguments(start=str(TINY), training="tiny-cpu"), [], NOWHERE), load(None, [])
    assert (taught.update.lr, taught.start, taught.fresh) == (2e-5, str(TINY), None)
    assert made.fresh is not None
    assert taught.training == "tiny-cpu"
    with pytest.raises(ConfigError, match="name the training whose agent the model learns to be: --training"):
        load(None, [], str(TINY))
    with pytest.raises(ConfigError, match="say which model learns the demonstrations: --from MODEL"):
        load_given(WarmstartArguments(demonstrations="world"), [], NOWHERE)
    with pytest.raises(ConfigError, match="--from is empty"):
        load(None, [], " ")
    for given in (WarmstartArguments(recipe=""), WarmstartArguments(demonstrations=" "), WarmstartArguments(training="")):
        with pytest.raises(ConfigError, match="is empty; give what it names"):
            load_given(given, [], NOWHERE)


def test_paths_in_a_recipe_are_meant_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/training.yaml").write_text("base: tiny-cpu")
    (tmp_path / "mine/warm.yaml").write_text(
        "base: tiny\nfresh: null\nstart: somebody/model\ntraining: training.yaml\n"
        "phases: {copying: null, habits: null, talk: {demonstrations: {"
        "chats: {kind: chat, path: talk.jsonl}, run: {kind: run, name: r, root: store}}}}"
    )
    settings = load(str(tmp_path / "mine/warm.yaml"), [])
    assert (settings.training, settings.start) == (str(tmp_path / "mine/training.yaml"), "somebody/model")
    sources = settings.model_dump(mode="json")["phases"]["talk"]["demonstrations"]
    assert (sources["chats"]["path"], sources["run"]["root"]) == (f"{tmp_path}/mine/talk.jsonl", f"{tmp_path}/mine/store")
