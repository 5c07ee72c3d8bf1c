from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError

from nbrl.infra.errors import StorageError
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.source import PolicySettings, fetch
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.decisive import digest
from nbrl.tasks.runs.plan import plan
from nbrl.tasks.runs.recipes import load, names, with_home

TINY = Path(__file__).parents[2] / "infra" / "policies" / "tiny"


def refuse(overrides: list[str], *words: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_config(load("tiny-cpu", overrides))
    for word in words:
        assert word in str(error.value)


GYM = ("mixed-cpu", "smollm2-135m-format")  # whose import takes seconds


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.more if name in GYM else ()) for name in names()])
def test_a_shipped_recipe_loads_and_can_work(name: str) -> None:
    config = load(name)
    if "/models/" in config.policy.path:  # made first, by `nbrl warmstart`
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"path": str(TINY)})})
    check_config(config)


def test_overrides_are_typed_and_reach_their_setting() -> None:
    config = load("tiny-cpu", ["update.lr=0.01", "seed=7", "rollout.prompts=8"])
    assert (config.update.lr, config.seed, config.rollout.prompts) == (0.01, 7, 8)


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("rollout.promts=8", "prompts"),
        ("sed=1", "seed"),
        ("environments.world.trian=4", "train"),
        ("reward.qa_weights.exat=1", "exact"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(override: str, near: str) -> None:
    refuse([override], "unknown key", override.split("=")[0], repr(near))


DEEP: dict[str, object] = {}
for _ in range(400):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seed": int("f" * 10_000, 16)}, "a number has more than 64 bits"),
        ({"home": "\ud800"}, "a text has the character"),
        ({"storage": {"root": "\ud800"}}, "a text has the character"),
        ({"policy": {"path": "a\0b"}}, "a text has the character"),
        ({"engine": {"extra_args": {"a\0": "b"}}}, "a text has the character"),
        ({"agent": {"system_prompt": "\udfff"}}, "a text has the character"),
        ({"environments": {"mine": {"kind": "own", "settings": DEEP}}}, "it is nested too deep"),
    ],
)
@pytest.mark.attack(
    tried="Settings of a run that no file, program or server can take",
    wall="settings have bounds: depth, bits, characters",
    effect="one sentence",
)
def test_settings_that_nothing_can_take_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RunConfig.model_validate(load("tiny-cpu").model_dump(mode="json") | given)


@pytest.mark.parametrize("key", ["home", "storage.root", "policy.path"])
@pytest.mark.parametrize("path", ["x" * 5000, "a/" * 3000, f"x/{'é' * 200}"])
def test_a_path_that_is_too_long_is_refused_in_words(key: str, path: str) -> None:
    with pytest.raises(StorageError, match=r"is too long for a path; give one with names of at most 255 bytes"):
        check_config(load("tiny-cpu", [f"{key}={path}"]))
    with pytest.raises(ConfigError, match=r"policy\.path"):
        fetch(PolicySettings(path=path))


def test_an_unknown_recipe_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="tiny-cpu"):
        load("tiny-cpus")


def test_a_value_of_the_wrong_kind_is_named() -> None:
    refuse(["rollout.prompts=many"], "rollout.prompts", "many")


def test_an_override_without_a_value_is_refused() -> None:
    refuse(["seed"], "section.key=value")
    refuse(["seed.deep=1"], "not a section")


def test_a_round_may_have_more_prompts_than_there_are_questions() -> None:
    check_config(load("tiny-cpu", ["rollout.prompts=100", "environments.world.train=50"]))


def test_a_weight_with_which_an_environment_would_not_be_asked_is_refused() -> None:
    more = ["environments.more={kind: world, train: 4, held_out: 4}"]
    refuse([*more, "environments.more.weight=1e-9"], "environments.more.weight is 1e-09 of 1,", "less than one of 10000 prompts")
    check_config(load("tiny-cpu", [*more, "environments.more.weight=0.0002"]))
    check_config(load("tiny-cpu", [*more, "environments.more.weight=1e-9"]), "evaluate")


@pytest.mark.parametrize(
    ("environments", "words"),
    [
        ("{no: {kind: world}}", "False is no name of an environment, as YAML reads no, .*; put the name in quotes$"),
        ("{null: {kind: world}}", "None is no name of an environment"),
        ("{7: {kind: world}}", "7 is no name of an environment"),
        ("{a b: {kind: world}}", "an environment cannot be named 'a b': take up to 40 letters"),
        ("{world: null}", "no environment is left, so there is nothing to ask; name one"),
        ("{}", "no environment is left"),
    ],
)
def test_environments_without_a_usable_name_and_none_at_all_are_refused_in_words(
    tmp_path: Path, environments: str, words: str
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"base: tiny-cpu\nenvironments: {environments}\n")
    with pytest.raises(ConfigError, match=words) as caught:
        load(str(path))
    assert str(caught.value).startswith("environments in ")
    assert "\n" not in str(caught.value)


def test_a_group_of_one_is_refused_where_groups_are_compared() -> None:
    refuse(["rollout.group_size=1", "advantage.estimator=grpo", "select.drop_rate=0"], "group_size")
    refuse(["rollout.group_size=1"], "drop_rate")
    check_config(load("tiny-cpu", ["rollout.group_size=1", "select.drop_rate=0"]))


def test_a_context_longer_than_the_model_is_refused() -> None:
    refuse(["agent.context_tokens=100000"], "agent.context_tokens")


def test_sampling_that_the_update_cannot_follow_is_refused() -> None:
    refuse(["sampling.temperature=0.7"], "sampling.temperature")


def test_more_episodes_than_kernels_are_refused() -> None:
    refuse(["rollout.episodes_per_runner=50", "sandbox.max_live=10"], "sandbox.max_live")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "rollout.tools.read_page.timeout_s=120",
            "rollout.tools.read_page.timeout_s is 120 but sandbox.call_timeout_s, which ends every call, only 30",
        ),
        ("rollout.tools.mcp={m: {command: [x], timeout_s: 31}}", "rollout.tools.mcp.m.timeout_s is 31"),
    ],
)
def test_limits_that_others_cut_off_are_refused(override: str, words: str) -> None:
    refuse([override], words)


def test_tools_may_take_as_long_as_calls() -> None:
    check_config(
        load(
            "tiny-cpu",
            [
                "sandbox.call_timeout_s=120",
                "rollout.tools.inspect_file.timeout_s=120",
                "rollout.tools.default=[search, inspect_file]",
            ],
        )
    )
    check_config(load("tiny-cpu", ["sandbox.call_timeout_s=5"]))  # the limits of tools that nobody set


def test_a_missing_policy_is_refused(tmp_path: Path) -> None:
    refuse([f"policy.path={tmp_path}/nowhere/at/all"], "does not exist")
    refuse([f"policy.path={tmp_path}"], "config.json")


def test_data_files_are_checked(tmp_path: Path) -> None:
    good = pa.table({"id": ["a"], "question": ["q?"], "answers": [["x"]], "ability": ["qa"], "source": ["s"]})
    pq.write_table(good, tmp_path / "good.parquet")
    pq.write_table(good.drop_columns(["answers"]), tmp_path / "lacking.parquet")
    pq.write_table(good.set_column(2, "answers", pa.array([[" "]])), tmp_path / "empty.parquet")
    pq.write_table(pa.concat_tables([good, good]), tmp_path / "twice.parquet")
    pq.write_table(good.set_column(1, "question", pa.array([None], pa.string())), tmp_path / "null.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    recipe = yaml.safe_load((Path("infra/recipes/tiny-cpu.yaml")).read_text())
    recipe["policy"]["path"] = str(Path("infra/policies/tiny").resolve())
    for train, word in [
        ("good", ""),
        ("lacking", "answers"),
        ("empty", "empty answer"),
        ("absent", "does not exist"),
        ("twice", "more than once"),
        ("null", "question"),
        ("text", "Parquet"),
    ]:
        files = {"kind": "files", "train": f"{tmp_path}/{train}.parquet", "held_out": f"{tmp_path}/good.parquet"}
        recipe["environments"] = {"mine": files}
        recipe["rollout"]["prompts"] = 1
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        if word:
            with pytest.raises(ConfigError, match=word):
                check_config(load(str(path)))
        else:
            check_config(load(str(path)))


def test_the_digest_ignores_where_a_run_lives_how_its_updates_are_spread_and_how_long_it_goes_on() -> None:
    base = digest(load("tiny-cpu"))
    assert digest(load("tiny-cpu", ["iterations=99", "home=/elsewhere", "storage.root=/elsewhere"])) == base
    assert digest(load("tiny-cpu", ["update.workers=3", "update.tokens_per_micro_batch=64", "update.device=cpu"])) == base
    assert digest(load("tiny-cpu", ["update.lr=0.5"])) != base


def test_the_storage_is_in_the_home_unless_it_is_named() -> None:
    assert load("tiny-cpu").storage.root == ".nbrl/storage"
    config = load("tiny-cpu", ["home=/elsewhere"])
    assert config.storage.root == config.model_dump()["storage"]["root"] == "/elsewhere/storage"  # which a run keeps
    assert load("tiny-cpu", ["home=/elsewhere", "storage.root=/other"]).storage.root == "/other"
    assert load("tiny-cpu", ["home=/elsewhere", "ray.address=auto", "storage.shared=true"]).storage.root == "/elsewhere/storage"


def test_a_home_beside_the_overrides_is_one_of_them_and_named_once() -> None:
    assert load("tiny-cpu", with_home("/a: b", ["iterations=1"])).home == "/a: b"
    assert with_home(None, ["home=a"]) == ("home=a",)
    with pytest.raises(ConfigError, match=r"^--home a and --set home=b both name the home"):
        with_home("a", ["home=b"])


def test_the_plan_names_the_trajectories_of_an_iteration() -> None:
    text = plan(load("tiny-cpu", ["rollout.prompts=10", "rollout.group_size=3"]))
    assert "10 prompts × 3 = 30 trajectories" in text
    assert "a checkpoint takes about 13.9 MB; those that stay take at most 59.1 MB" in text
    assert yaml.safe_load(text)["rollout"]["prompts"] == 10


def test_a_prompt_that_leaves_no_room_for_any_question_is_refused() -> None:
    refuse(["agent.context_tokens=70"], "agent.context_tokens is 70", "an empty question", "agent.action_tokens (48)", "raise it")
    refuse([f"agent.system_prompt={'word ' * 200}"], "agent.context_tokens is 164")
