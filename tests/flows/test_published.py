"""A run is published, and verified by a stranger who has nothing but what was published."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nbrl.infra.parse import seal
from nbrl.infra.storage import Storage
from nbrl.tasks.bundle.contents import CONTENTS, FileList, listed, root_of
from tests.flows.typed import nbrl
from tests.tasks.bundle.test_download import web

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SSH key; the public one beside it ends with .pub."""
    path = tmp_path_factory.mktemp("keys") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


@pytest.fixture(scope="module")
def published(home: Path, storage: Storage, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "small"
    done = nbrl("publish-run", "small", str(folder), "--sign", str(key), "--home", str(home))
    assert done.returncode == 0, done.stderr
    assert "nbrl audit" in done.stdout
    return folder


@pytest.fixture
def elsewhere(published: Path, tmp_path: Path) -> Path:
    """A copy that may be changed, and no other trace of the run."""
    return Path(shutil.copytree(published, tmp_path / "copy"))


def audit(where: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    return nbrl("audit", str(where), *words)


def test_a_published_run_is_proved_with_the_key(published: Path, key: Path) -> None:
    done = audit(published, "--signed-by", f"{key}.pub", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["contradictions"] == []
    certain = {each["what"]: each["certainty"] for each in said["claims"]}
    assert certain["who published it"] == certain["rewards, selections, advantages"] == certain["evaluations"] == "proved"
    assert certain["weights"] == certain["updates"] == "consistent"
    assert certain["trajectories"] == certain["completeness"] == "on trust"


def test_a_published_run_names_neither_folders_nor_hosts_of_its_machine(home: Path, published: Path) -> None:
    for path in published.rglob("*.json"):
        assert str(home) not in path.read_text()
        assert str(Path.home()) + "/" not in path.read_text()
    epoch = json.loads(next((published / "storage/runs/small/epochs").iterdir()).read_text())
    assert epoch["host"] == epoch["user"] == epoch["command"] == epoch["process"] == ""
    assert "success on held-out questions" in (published / "README.md").read_text()


def test_everybody_may_read_it(published: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in published.rglob("*")} == {0o755, 0o644}


def test_it_is_verified_over_the_web(published: Path) -> None:
    with web(published) as address:
        done = audit(address)
    assert done.returncode == 0, done.stderr
    assert "it is not signed" not in done.stdout
    assert "its signature was not compared" in " ".join(done.stdout.split())


def test_a_signature_of_another_is_refused(elsewhere: Path, key: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    assert "is not signed by the owner of" in audit(elsewhere, "--signed-by", f"{other}.pub").stderr
    fields = json.loads((elsewhere / CONTENTS).read_text())
    (elsewhere / CONTENTS).write_text(json.dumps(fields | {"commit": "0" * 40}))
    done = audit(elsewhere, "--signed-by", f"{key}.pub")
    assert done.returncode != 0
    assert "is not signed by the owner of" in done.stderr
    (elsewhere / f"{CONTENTS}.sig").unlink()
    assert "is not signed: it has no" in audit(elsewhere, "--signed-by", f"{key}.pub").stderr


def relist(folder: Path) -> None:
    """Make the list anew, as a forger would."""
    contents = FileList.model_validate_json((folder / CONTENTS).read_text())
    files = {path: listed(folder / path) for path in contents.files if (folder / path).exists()}
    (folder / CONTENTS).write_text(contents.model_copy(update={"files": files, "root": root_of(files)}).model_dump_json())


def sealed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(path.read_text())
    del fields["sha256"]
    change(fields)
    path.write_bytes(seal(fields))


def forge_reward(folder: Path) -> None:
    """Every answer was right, says a table, and the record names that table."""

    def right(rewards: pa.Table) -> pa.Table:
        place = rewards.column_names.index("success")
        return rewards.set_column(place, "success", pc.add(pc.multiply(rewards["success"], 0.0), 1.0))

    change_rewards(folder, right)


def forge_rows(folder: Path) -> None:
    """A few bytes more, and a thousand times as many rows."""
    change_rewards(folder, lambda rewards: pa.concat_tables([rewards, *[rewards.slice(0, 1)] * 30_000]))


def forge_iteration(folder: Path) -> None:
    """One more iteration, of which there is nothing but a record with great figures."""
    iterations = folder / "storage/runs/small/iterations"
    fields = {"iteration": 2, "artifacts": [], "skipped": "x", "metrics": {"rollout/sampled_tokens": 2e10}}
    for record in ("record.json", "record-copy.json"):
        (iterations / "000002").mkdir(exist_ok=True)
        shutil.copyfile(iterations / "000001" / record, iterations / "000002" / record)
        sealed(iterations / "000002" / record, lambda made: made.update(fields))
    contents = FileList.model_validate_json((folder / CONTENTS).read_text())
    paths = [f"storage/runs/small/iterations/000002/{record}" for record in ("record.json", "record-copy.json")]
    files = {**contents.files, **{path: listed(folder / path) for path in paths}}
    (folder / CONTENTS).write_text(contents.model_copy(update={"files": files}).model_dump_json())


def change_rewards(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = next((folder / "storage/runs/small/iterations/000001").rglob("rewards.parquet"))
    pq.write_table(change(pq.read_table(table)), table)
    digest = listed(table).sha256

    def name(fields: dict[str, Any]) -> None:
        next(each for each in fields["artifacts"] if each["path"].endswith("rewards.parquet"))["digest"] = digest

    for record in ("record.json", "record-copy.json"):
        sealed(folder / "storage/runs/small/iterations/000001" / record, name)


def forge_weights(folder: Path) -> None:
    weights = folder / "weights/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))


def forge_adapters(folder: Path) -> None:
    forge_weights(folder)
    contents = FileList.model_validate_json((folder / CONTENTS).read_text())
    (folder / "weights/adapter_config.json").write_text("{}")
    files = {**contents.files, "weights/adapter_config.json": listed(folder / "weights/adapter_config.json")}
    (folder / CONTENTS).write_text(contents.model_copy(update={"files": files}).model_dump_json())


def forge_scores(folder: Path) -> None:
    """Every held-out question was right, says the result of an evaluation."""

    def praise(fields: dict[str, Any]) -> None:
        for name, metric in fields["artifact"]["metrics"].items():
            if name.startswith("success"):
                metric[0] = 1.0

    sealed(next((folder / "storage/runs/small/evaluations/000002/nodes").iterdir()), praise)


def forge_card(folder: Path) -> None:
    card = folder / "README.md"
    card.write_text(card.read_text().replace("| before | 0.", "| before | 1."))


def forge_updates(folder: Path) -> None:
    fields = json.loads((folder / CONTENTS).read_text())
    (folder / CONTENTS).write_text(json.dumps(fields | {"updates": 4242}))


def forge_size(folder: Path) -> None:
    sealed(folder / "storage/runs/small/run.json", lambda fields: fields["config"]["rollout"].update(prompts=2_000_000_000))


def forge_code(folder: Path) -> None:
    def name(fields: dict[str, Any]) -> None:
        world = {"kind": "own", "place": "os:getcwd", "settings": {}, "weight": 1.0}
        fields["config"]["environments"]["world"] = world

    sealed(folder / "storage/runs/small/run.json", name)


def forge_name(folder: Path) -> None:
    fields = json.loads((folder / CONTENTS).read_text())
    (folder / CONTENTS).write_text(json.dumps(fields | {"run": "../../../etc"}))


def forge_more(folder: Path) -> None:
    contents = FileList.model_validate_json((folder / CONTENTS).read_text())
    (folder / "storage/runs/small/evil.pkl").write_bytes(b"x")
    files = {**contents.files, "storage/runs/small/evil.pkl": listed(folder / "storage/runs/small/evil.pkl")}
    (folder / CONTENTS).write_text(contents.model_copy(update={"files": files}).model_dump_json())


def forge_no_card(folder: Path) -> None:
    (folder / "README.md").unlink()


def forge_rule(folder: Path) -> None:
    """A table of questions names what is called to score their answers."""
    data = folder / "storage/runs/small/data"
    table = pq.read_table(data / "held_out.parquet")
    reference = json.dumps({"place": "subprocess:call", "settings": {"args": ["true"]}, "reference": None})
    for name, value in (("rule", "own"), ("reference", reference)):
        table = table.set_column(table.column_names.index(name), name, [[value] * len(table)])
    pq.write_table(table, data / "held_out.parquet")
    digest = listed(data / "held_out.parquet").sha256
    sealed(data / "digests.json", lambda fields: fields.update({name: digest for name in fields if "held_out.parquet" in name}))


def forge_recipe(folder: Path) -> None:
    """The recipe is called by words that make the card say more."""
    praise = "tiny-cpu`.\n\n| SimpleQA | 0.999 |\n\n`"
    sealed(folder / "storage/runs/small/run.json", lambda fields: fields.update(recipe=praise))


def forge_evaluation(folder: Path) -> None:
    evaluations = folder / "storage/runs/small/evaluations"
    shutil.copytree(evaluations / "000002", evaluations / "000009")
    contents = FileList.model_validate_json((folder / CONTENTS).read_text())
    paths = [str(path.relative_to(folder)) for path in (evaluations / "000009").rglob("*") if path.is_file()]
    files = {**contents.files, **{path: listed(folder / path) for path in paths}}
    (folder / CONTENTS).write_text(contents.model_copy(update={"files": files}).model_dump_json())


def forge_no_advantages(folder: Path) -> None:
    def without(fields: dict[str, Any]) -> None:
        fields["artifacts"] = [each for each in fields["artifacts"] if not each["path"].endswith("advantages.parquet")]

    for record in ("record.json", "record-copy.json"):
        sealed(folder / "storage/runs/small/iterations/000000" / record, without)


@pytest.mark.attack(
    tried="Forge records, tables or the model card of a published run, and list all of it anew",
    wall="what can be computed again is, and each of the rest names what made it",
    effect="a contradiction",
)
@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (forge_rule, "is scored by 'subprocess:call', which is no class that the settings name"),
        (forge_recipe, "is no plain word"),
        (forge_evaluation, "evaluation after 9 updates: it evaluated weights that the run never had after so many updates"),
        (forge_rows, "rewards of 8 prompts, or one of them twice"),
        (forge_iteration, "iteration 3: its record names no round of rollouts"),
        (forge_no_advantages, "groups were kept, but no advantages were computed"),
        (forge_reward, "the rewards are not what the trajectories earn"),
        (forge_weights, "does not hold the weights after 2 updates"),
        (forge_adapters, "does not hold the weights after 2 updates"),
        (forge_scores, "its scores are not those of its answers"),
        (forge_card, "README.md is not the model card that the records give"),
        (forge_updates, "the list says that there were 4242 updates"),
        (forge_size, "there are 8 prompts, and rollout.prompts is 2000000000"),
        (forge_code, "--trust"),
        (forge_name, "is no list of a published run"),
        (forge_more, "holds storage/runs/small/evil.pkl, which is not of the run"),
        (forge_no_card, "README.md is not the model card that the records give"),
    ],
)
def test_a_forger_who_lists_everything_anew_is_found_out(elsewhere: Path, forge: Callable[[Path], None], words: str) -> None:
    forge(elsewhere)
    if forge is not forge_name:
        relist(elsewhere)
    done = audit(elsewhere, "--replay", "1") if forge is forge_no_advantages else audit(elsewhere)
    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.more
def test_an_update_of_a_published_run_is_done_again_bit_for_bit(published: Path) -> None:
    done = audit(published, "--replay", "1")
    assert done.returncode == 0, done.stderr
    assert "the same weights, bit for bit" in " ".join(done.stdout.split())


def test_what_exists_is_not_overwritten_and_an_unknown_run_is_named(home: Path, published: Path, tmp_path: Path) -> None:
    assert "exists; name a folder that does not" in nbrl("publish-run", "small", str(published), "--home", str(home)).stderr
    within = nbrl("publish-run", "small", str(published / "a/b"), "--home", str(home)).stderr
    assert "a published run that names all its files; name a folder beside it" in " ".join(within.split())
    assert "a run cannot be named '../x'" in nbrl("publish-run", "../x", str(tmp_path / "x"), "--home", str(home)).stderr
    assert "no run 'nothing'" in nbrl("publish-run", "nothing", str(tmp_path / "x"), "--home", str(home)).stderr
    assert not (tmp_path / "x").exists()
