"""What can be deployed: its parameters, and what is refused before anything is registered."""

import asyncio
import importlib.util
from pathlib import Path

import httpx
import prefect.server.schemas.schedules  # noqa: F401  # starts a process once, which no test of this tier may
import pytest
import yaml
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate

from nbrl.flows import deployed
from nbrl.flows.deployments import DeployOptions, deployments_of
from nbrl.flows.registration import answered, register
from nbrl.infra import prefect_server
from nbrl.infra.errors import ServerError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.nodes.durable import slug
from nbrl.tasks.runs.decisive import digest
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import Run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> str:
    config = load("tiny-cpu")
    settings = config.model_dump(mode="json")
    run = Run(name="r", run_id="x", config_digest=digest(config), seed=0, recipe="tiny-cpu", config=settings, policy="w0")
    storage = Storage(StorageSettings(root=str(tmp_path / "storage")))
    storage.write_json(run.layout.identity, run.model_dump(mode="json"))
    return storage.settings.root


@pytest.mark.parametrize(
    ("flow", "good", "bad"),
    [
        (deployed.train, {"run": "a"}, {}),
        (deployed.train, {"run": "a", "overrides": ["iterations=3"]}, {"run": "a", "settings": {"update": {"lr": "much"}}}),
        (deployed.train, {"run": "a", "settings": {"update": {"lr": 0.1}}}, {"run": "a", "iterations": 3}),
        (deployed.evaluate, {"settings": {"evaluate": {"mode": "vote"}}, "samples": 4}, {"samples": 0}),
        (deployed.prepare, {"recipe": "a.yaml", "folder": "b"}, {"recipe": "a.yaml"}),
        (deployed.clean, {"dry_run": True}, {"dry_run": "perhaps"}),
    ],
)
def test_prefects_own_form_refuses_what_the_model_refuses(flow: object, good: dict[str, object], bad: dict[str, object]) -> None:
    schema = parameter_schema(flow).model_dump_for_openapi()  # type: ignore[arg-type]
    assert validate({"order": good}, schema) == []
    with pytest.raises(Exception, match=r"required|additional|minimum|boolean|Additional|not of type|is not"):
        validate({"order": bad}, schema, raise_on_error=True)
    described = schema["definitions"].values()
    assert all("description" in each for model in described for each in model["properties"].values())


@pytest.mark.process  # Prefect asks which platform this is
def test_what_is_cleaned_is_the_storage_of_the_recipe(root: str) -> None:
    (clean,) = deployments_of(DeployOptions(kind="clean", recipe="tiny-cpu", overrides=(f"storage.root={root}",)))
    assert clean.parameters["order"]["root"] == root


@pytest.mark.process  # Prefect asks which platform this is
def test_a_run_is_trained_evaluated_and_its_storage_cleaned(root: str) -> None:
    train, evaluate, clean = deployments_of(DeployOptions(run="r", root=root, cron="*/5 * * * *"))
    assert [each.full_name for each in (train, evaluate, clean)] == ["train/r", "evaluate/r", "clean/all-runs"]
    assert train.parameters["order"] == {"run": "r", "recipe": "", "overrides": [], "root": root}
    assert evaluate.parameters["order"]["model"] == "r"
    for each in (train, evaluate, clean):
        assert each.concurrency_limit == 1
        assert str(each.concurrency_options.collision_strategy.value) == "CANCEL_NEW"  # type: ignore[union-attr]
        assert "nbrl" in each.tags
        assert each.entrypoint == f"nbrl.flows.deployed.{each.flow_name}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "train"}, "name the run with --run"),
        ({"kind": "train", "run": "s"}, "there is no run 's'"),
        ({"kind": "evaluate", "run": "s"}, "there is no run 's'"),
        ({"kind": "clean", "recipe": "tiny-cpu"}, r"^--root .* changes nothing where there is a recipe"),
        ({"kind": "train", "run": "r", "cron": "61 * * * *"}, "--cron '61 \\* \\* \\* \\*' is no schedule .*; give five fields"),
        ({"kind": "train", "run": "r", "cron": "* * * * * *"}, "it has 6 fields"),
        ({"kind": "train", "run": "r", "cron": "0 0 31 2 *"}, "it is never due"),
        ({"kind": "train", "run": "r", "overrides": ("update.lr=banana",)}, "update.lr=banana"),
        ({"kind": "train", "run": "r", "overrides": ("update.lr=1",)}, "update.lr is 1.0, the run began with"),
        ({"kind": "train", "run": "r", "out": "folder"}, "--out is the folder of a preparation"),
        ({"kind": "evaluate", "run": "r", "overrides": ("evaluate.samples=many",)}, "evaluate.samples=many"),
        ({"kind": "clean", "overrides": ("update.lr=1",)}, "--set changes nothing"),
        ({"kind": "prepare", "recipe": "examples/prepare/recipe.yaml", "out": "/"}, "name a folder of its own"),
        ({"kind": "prepare", "recipe": "examples/prepare/recipe.yaml", "out": "o", "run": "r"}, "--run changes nothing"),
        ({"kind": "train", "run": "r", "cron": "every night"}, "is no schedule"),
        ({"kind": "train", "run": "new", "recipe": "gone.yaml"}, r"gone\.yaml"),
        ({"kind": "train", "run": "a/b"}, "cannot be named"),
        ({"kind": "clean", "run": "s"}, "there is no run 's'"),
        ({"kind": "clean", "root": "nowhere"}, "there is no run in nowhere to clean"),
        ({"kind": "train", "run": "r", "webhook": "notaurl"}, "--webhook 'notaurl': give an address"),
        ({"kind": "prepare", "recipe": "a.yaml"}, "--out FOLDER"),
        ({"kind": "prepare", "recipe": "gone.yaml", "out": "o"}, r"gone\.yaml"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(root: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        deployments_of(DeployOptions.model_validate({"root": root} | options))


@pytest.mark.process  # Prefect asks which platform this is
def test_an_evaluation_has_the_settings_that_were_asked_for(root: str) -> None:
    (evaluate,) = deployments_of(DeployOptions(kind="evaluate", run="r", root=root, overrides=("evaluate.samples=8",)))
    assert evaluate.parameters["order"] == {"model": "r", "root": root, "overrides": ["evaluate.samples=8"]}


@pytest.mark.process  # Prefect asks which platform this is
def test_a_home_is_that_of_what_is_started(root: str) -> None:
    train, evaluate, clean = deployments_of(DeployOptions(run="r", root=root, home="/elsewhere"))
    assert train.parameters["order"]["overrides"] == evaluate.parameters["order"]["overrides"] == ['home="/elsewhere"']
    assert clean.parameters["order"] == {"root": root}
    (clean,) = deployments_of(DeployOptions(kind="clean", recipe="tiny-cpu", run="r", home=root.removesuffix("/storage")))
    assert clean.parameters["order"]["root"] == root


@pytest.mark.parametrize("pool", ["", "a/b", "-a", "a b"])
def test_what_no_pool_can_be_called_is_refused(tmp_path: Path, pool: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a work pool"):
        asyncio.run(register([], pool, tmp_path))


def test_a_refusal_of_prefects_server_is_a_sentence() -> None:
    request = httpx.Request("POST", "http://prefect.example/api/work_pools/")
    refused = httpx.HTTPStatusError("Client error '401 Unauthorized'", request=request, response=httpx.Response(401))
    with pytest.raises(ServerError, match=r"401 Unauthorized.*PREFECT_API_KEY"), answered():
        raise refused


@pytest.mark.process  # Prefect asks which platform this is
def test_prefect_yaml_declares_what_nbrl_deploy_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("deployments_file", ROOT / "docs/deployments.py")
    assert spec
    assert spec.loader
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "prefect.yaml").read_text()
    assert text == writer.page(), "run: python docs/deployments.py"
    file = yaml.safe_load(text)
    for each in file["deployments"]:
        path, _, name = each["entrypoint"].partition(":")
        assert (ROOT / path).samefile(deployed.__file__)
        vars(deployed)[name].validate_parameters(each["parameters"])
        assert each["work_pool"]["job_variables"]["env"] == prefect_server.CLIENT


@pytest.mark.parametrize("pool", ["kubernetes", "ray"])
def test_examples_of_work_pools_are_templates(pool: str) -> None:
    template = yaml.safe_load((ROOT / f"examples/deploy/{pool}.yaml").read_text())
    text = yaml.safe_dump(template["job_configuration"])
    for name in template["variables"]["properties"]:
        assert f"{{{{ {name} }}}}" in text


def test_keys_of_artifacts_differ_where_names_do() -> None:
    names = ["a-b", "a_b", "A-b", "a.b", "é", "ü", "a--b"]
    keys = [slug("run", name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for key in keys)
