"""`nbrl export`: a checkpoint as a folder that others load."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from nbrl.flows.cli.export import export
from nbrl.infra.engine.server import launch, wait
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import UpdateResult
from nbrl.tasks.learner.proof import ProofSequence
from nbrl.tasks.learner.settings import LoraSettings, UpdateSettings
from nbrl.tasks.model_folder.export import export as copy
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.run import Run
from tests.tasks.learner import update_lab
from tests.uploads import upload

NBRL = Path(sys.executable).with_name("nbrl")
TINY = Path(__file__).parents[3] / "infra" / "policies" / "tiny"

SCORE = """
import sys, json, torch
from transformers import AutoModelForCausalLM
model, ids = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32), torch.tensor([json.loads(sys.argv[2])])
with torch.no_grad():
    logp = model(ids).logits[0].log_softmax(-1)
print(json.dumps(logp[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()))
"""


@pytest.fixture(scope="module")
def root(alone: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage root with a run `a` of two updates of the tiny policy, of which only the first was recorded."""
    root = tmp_path_factory.mktemp("storage")
    made_run(root, str(TINY), updates=2)
    return root


def made_run(root: Path, policy: str, updates: int, **settings: Any) -> Run:
    run = Run(name="a", run_id="x", config_digest="y", seed=0, recipe="r", policy="w0", config={})
    learner, before = (
        Learner(UpdateSettings(workers=1, lr=1e-3, **settings), update_lab.places(Path(policy)), torch.device("cpu")),
        None,
    )
    for number in range(updates):
        out = root / run.layout.checkpoint(number + 1, "e0001-abcdef")
        out.parent.mkdir(parents=True, exist_ok=True)
        trajectories = update_lab.make_trajectories(1)
        order = update_lab.write_order(
            root / "orders",
            trajectories,
            str(out),
            iteration=number,
            checkpoint_in=before,
            proof_token_ids=trajectories[0].path(3),
        )
        before = learner.execute(order).checkpoint
    storage = Storage(StorageSettings(root=str(root)))
    storage.write_bytes("runs/a/run.json", run.model_dump_json().encode())
    record = Record(
        iteration=0,
        cursor=1,
        checkpoint=run.layout.checkpoint(1, "e0001-abcdef"),
        artifacts=[],
        metrics={},
        run_id=run.run_id,
        epoch="e0001-abcdef",
        finished=1.0,
        weights="w1",
    )
    storage.write_bytes(run.layout.iteration(0).record, record.model_dump_json().encode())
    return run


def write(root: Path, run: str, target: Path, updates: int | None = None, **options: Any) -> None:
    export(Storage(StorageSettings(root=str(root))), run, updates, target, **options)


def command(root: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = [str(NBRL), "export", *map(str, arguments), "--root", str(root)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def proof(root: Path) -> ProofSequence:
    result = UpdateResult.model_validate_json((root / "runs/a/checkpoints/000001-e0001-abcdef/result.json").read_text())
    return result.proof.sequences[0]


@pytest.mark.more
@pytest.mark.engine
def test_an_export_is_scored_by_transformers_and_sglang_as_its_proof_was(root: Path, tmp_path: Path) -> None:
    scored_before, target = proof(root), tmp_path / "new" / "model"
    done = command(root, "a", target, "--max-shard-size", "1MB")
    assert done.returncode == 0, done.stderr
    assert "checkpoints/000001-e0001-abcdef" in done.stdout
    names = {path.name for path in target.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    assert {"model.safetensors.index.json", "model-00001-of-00004.safetensors"} <= names
    assert "chat_template" in json.loads((target / "tokenizer_config.json").read_text())
    assert list((tmp_path / "new").iterdir()) == [target]
    line = [sys.executable, "-c", SCORE, str(target), json.dumps(scored_before.token_ids)]
    scored = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    torch.testing.assert_close(scored, scored_before.logprobs, atol=1e-4, rtol=1e-4)
    assert served(target, scored_before.token_ids, tmp_path) == pytest.approx(scored_before.logprobs, abs=1e-3)


def served(model: Path, ids: list[int], logs: Path) -> list[float]:
    import asyncio

    (engine,) = wait([launch(EngineSettings(device="cpu", max_total_tokens=4096, request_timeout_s=60), model, logs)])

    async def score() -> list[float]:
        async with engine.client() as client:
            return await client.score(ids)

    try:
        return asyncio.run(score())
    finally:
        engine.stop()


def test_without_options_the_files_are_the_checkpoints_own(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "empty"
    target.mkdir()
    write(root, "a", target, updates=1)
    source = root / "runs/a/checkpoints/000001-e0001-abcdef/hf"
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {p.name: p.read_bytes() for p in source.iterdir()}


@pytest.mark.parametrize(("named", "ends"), [(0, [0, 2]), ([2], [2]), (None, [2])])
def test_an_export_generates_to_the_end_of_a_turn(tmp_path: Path, named: object, ends: list[int]) -> None:
    source, target = tmp_path / "model", tmp_path / "out"
    shutil.copytree(TINY, source)
    target.mkdir()
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": named, "do_sample": True}))
    copy(source, target, None, None)
    assert json.loads((target / "generation_config.json").read_text()) == {"eos_token_id": ends, "do_sample": True}


def test_weights_are_converted(root: Path, tmp_path: Path) -> None:
    write(root, "a", tmp_path / "half", dtype="bfloat16")
    whole = load_file(root / "runs/a/checkpoints/000001-e0001-abcdef/hf/model.safetensors")
    half = load_file(tmp_path / "half" / "model.safetensors")
    assert half.keys() == whole.keys()
    assert all(torch.equal(half[name], value.bfloat16()) for name, value in whole.items())
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto").dtype == torch.bfloat16


def test_values_that_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    save_file({"w": torch.tensor([1e6])}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="w has values that --dtype float16 cannot hold"):
        copy(tmp_path, tmp_path / "out", "float16", None)


FULL = """
import resource, sys
from nbrl.flows.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main())
"""


@pytest.mark.more
@pytest.mark.process
def test_a_disk_without_room_for_the_weights_is_one_sentence_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-c", FULL, "export", "a", str(tmp_path / "out"), "--dtype", "bfloat16", "--root", str(root)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "the weights could not be written anew" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("run", "target", "options", "words"),
    [
        ("b", "out", {}, "there is no run 'b'"),
        ("a", "out", {"updates": 2}, "checkpoints 1 to 1, not 2"),
        ("a", "out", {"max_shard_size": "much"}, "no size"),
        ("a", "out", {"max_shard_size": "-5MB"}, "no size"),
        ("a", "out", {"max_shard_size": "0GB"}, "no size"),
        ("a", "out", {"adapter": True}, "trained without update.lora"),
        ("a", "out", {"adapter": True, "dtype": "float16"}, "leave --dtype"),
        ("a", "full", {}, "nothing is overwritten"),
        ("a", "full/file", {}, "nothing is overwritten"),
        ("a", "full/file/below", {}, "could not be made"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(
    root: Path, tmp_path: Path, run: str, target: str, options: dict[str, Any], words: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(ConfigError, match=words):
        write(root, run, tmp_path / target, **options)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full"]


def cut(folder: Path) -> None:
    with (folder / "hf" / "model.safetensors").open("r+b") as file:
        file.truncate(100_000)


def shrink(folder: Path) -> None:
    """Say of a tensor that it is smaller than its bytes."""
    path = folder / "hf" / "model.safetensors"
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["model.norm.weight"]["shape"] = [1]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (shrink, {}, r"model\.norm\.weight at bytes"),
        (lambda folder: (folder / "hf" / "config.json").write_text("[]"), {}, r"config\.json is not as it should be"),
        (cut, {}, "bytes long, not"),
        (cut, {"dtype": "bfloat16"}, "bytes long, not"),
        (lambda folder: (folder / "hf" / "config.json").unlink(), {}, r"no config\.json"),
        (lambda folder: shutil.rmtree(folder / "hf"), {}, "checkpoint 1 of run .a. is gone"),
        (shutil.rmtree, {"adapter": True}, "checkpoint 1 of run .a. is gone"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_not_exported(
    root: Path, tmp_path: Path, spoil: Callable[[Path], None], options: dict[str, Any], words: str
) -> None:
    shutil.copytree(root, tmp_path / "root")
    spoil(tmp_path / "root/runs/a/checkpoints/000001-e0001-abcdef")
    with pytest.raises(ConfigError, match=words):
        write(tmp_path / "root", "a", tmp_path / "out", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_a_link_is_not_written_through(root: Path, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        write(root, "a", tmp_path / "out")


def test_the_adapter_is_exported_alone(alone: None, policy: Path, tmp_path: Path) -> None:
    run = made_run(tmp_path, str(policy), updates=1, lora=LoraSettings(rank=2))
    made = tmp_path / run.layout.checkpoint(1, "e0001-abcdef") / "adapter" / "adapter_config.json"
    config = made.read_text()
    for spoilt in (None, "{"):
        made.unlink() if spoilt is None else made.write_text(spoilt)
        with pytest.raises(ConfigError, match=r"incomplete.*adapter_config\.json"):
            write(tmp_path, "a", tmp_path / "out", adapter=True)
        assert not (tmp_path / "out").exists()
    made.write_text(config)
    write(tmp_path, "a", tmp_path / "out", adapter=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert (tmp_path / run.layout.checkpoint(1, "e0001-abcdef") / "hf" / "model.safetensors").is_file()


@pytest.mark.process
def test_an_error_is_one_line_on_the_command_line(root: Path, tmp_path: Path) -> None:
    done = command(root, "b", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.count("nbrl:") == 1


def test_of_a_remote_checkpoint_only_the_model_is_fetched(root: Path, tmp_path: Path) -> None:
    """As from S3: a storage that has no local path, with a manifest."""
    storage = Storage(StorageSettings(root=str(tmp_path / "far")))
    upload(storage, root / "runs/a/checkpoints/000001-e0001-abcdef", "c")
    for name in storage.list("c/state"):
        storage.delete(name)
    storage.download_folder("c", tmp_path / "near", "hf")
    assert sorted(path.name for path in (tmp_path / "near").iterdir()) == ["hf", "manifest.json"]
    assert (tmp_path / "near/hf/model.safetensors").read_bytes() == storage.read_bytes("c/hf/model.safetensors")


@pytest.mark.process
def test_runs_are_completed_at_a_key_press(root: Path) -> None:
    asked = {"_NBRL_COMPLETE": "complete_bash", "COMP_WORDS": f"nbrl export --root {root} ", "COMP_CWORD": "4"}
    done = subprocess.run([str(NBRL)], capture_output=True, text=True, env=os.environ | asked, check=False)
    assert done.stdout.split() == ["a"]
