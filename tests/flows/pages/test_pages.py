"""The pages of trajectories: what they show, that nothing a model wrote acts on them, and that a browser finds no fault."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import uvicorn
from starlette.testclient import TestClient
from typer.testing import CliRunner

from nbrl.agent.trajectory import Node, Output, Status, Step, ToolCall, Trajectory, from_table, to_table
from nbrl.flows.cli.commands import app as command
from nbrl.flows.cli.ui import newest_uri
from nbrl.flows.pages.app import app, page
from nbrl.flows.pages.reading import Reading
from nbrl.flows.pages.tokens import Token, action, branches, decoder
from nbrl.infra.process.child import free_port
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.learner.step.proving import TOKEN_LOGPROBS_SCHEMA
from nbrl.tasks.reward.score import SCHEMA as REWARDS
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.opening import open_run
from nbrl.tasks.runs.recipes import load
from tests.flows.typed import nbrl
from tests.tasks.storing import stored

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cf500f0003860180ef0b6dd40000000049454e44ae426082"
)
POLICY = str(Path(__file__).parents[3] / "infra/policies/tiny")


def played(sample: int, answer: str | None, status: Status = Status.ANSWERED) -> Trajectory:
    nodes = [
        Node(parent=-1, kind="system", step=-1, token_ids=[1, 2]),
        Node(parent=0, kind="tail", step=0, token_ids=[3]),
        Node(parent=1, kind="sampled", step=0, token_ids=[5, 6], logprobs=[-0.1, -2.3], weights_version="0"),
        Node(parent=0, kind="tail", step=1, token_ids=[3]),
    ]
    outputs = [
        Output(kind="display", text="a picture", image=PIXEL),
        Output(kind="display", text="none", image=b"<svg onload=1>"),
    ]
    call = ToolCall(name="search", arguments=EVIL, result="{}", ok=True, seconds=0.1)
    step = Step(think=EVIL, code=f"print({EVIL!r})", cell_status="ok", outputs=outputs, observation=EVIL, tool_calls=[call])
    return Trajectory(
        id=f"q:1-{sample}",
        group="q:1",
        sample=sample,
        question=f"What is {EVIL}?",
        ability="a",
        environment="e",
        status=status,
        answer=answer,
        failure="the wire was cut" if status is Status.FAILED else "",
        nodes=nodes,
        steps=[step],
    )


def rewarded(trajectory: Trajectory, success: float) -> dict[str, object]:
    facets = dict.fromkeys(("qa", "em", "f1", "answered", "format", "execution", "length"), 0.0)
    of = {"trajectory": trajectory.id, "group": trajectory.group, "ability": "a", "environment": "e"}
    return {**of, **facets, "status": trajectory.status, "step_rewards": [0.5], "total": success, "success": success} | {
        "own": [{"name": "tidy", "value": 0.25}],
        "unscored": "",
    }


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    made = Storage(StorageSettings(root=str(tmp_path)))
    place = RunLayout("r").iteration(2, "e0001-abcdef").round(0)
    all_ = [played(0, "42"), played(1, EVIL), played(2, None, Status.FAILED)]
    stored(made, place.trajectories, to_table(all_))
    made.write_table(place.rewards, pa.Table.from_pylist([rewarded(t, float(t.sample == 0)) for t in all_], schema=REWARDS))
    asked = table_of([{"id": "q:1", "question": "What?", "answers": ["forty-two"], "ability": "a", "source": ""}])
    made.write_table(place.prompts, asked.append_column("group", asked["id"]))
    return made


@pytest.fixture
def client(storage: Storage) -> TestClient:
    return TestClient(app(storage), base_url="http://localhost", raise_server_exceptions=True)


def test_a_trajectory_is_shown_with_its_reward_reference_tree_and_siblings(client: TestClient) -> None:
    assert "/runs/r" in client.get("/").text
    assert "iteration 3" in client.get("/runs/r").text
    page = client.get("/runs/r/iterations-000002/q:1-0")
    assert page.status_code == 200
    for words in ("forty-two", "success 1", "tidy 0.25", "2 tokens, log-probability -2.40", "2 ways on", "search(", "q:1-1"):
        assert words in page.text, words


@pytest.mark.parametrize("path", ["/runs/r/iterations-000002", "/runs/r/iterations-000002/q:1-1"])
def test_nothing_that_a_model_wrote_acts_on_a_page(client: TestClient, path: str) -> None:
    page = client.get(path).text
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "<svg" not in page
    assert "{{ 7*7 }}" in page or "49" not in page
    assert page.count("data:image/png") == page.count("<img ")
    assert "default-src 'none'" in page


def test_a_list_is_filtered_and_ordered(client: TestClient) -> None:
    base = "/runs/r/iterations-000002"
    assert "1 of 3 trajectories" in client.get(f"{base}?status=failed").text
    assert "1 of 3 trajectories" in client.get(f"{base}?text=42").text
    assert "0 of 3 trajectories" in client.get(f"{base}?ability=other").text
    worst = client.get(f"{base}?order=worst").text
    assert worst.index("q:1-1") < worst.index("q:1-0")


@pytest.mark.parametrize(
    "path",
    [
        "/runs/none",
        "/runs/r/iterations-000009",
        "/runs/r/iterations-000002/none",
        "/other/r",
        "/runs/..%2f..",
        "/runs/r/x/../../../etc",
    ],
)
def test_what_is_not_there_is_a_sentence(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert page.status_code in (200, 404)
    assert "Traceback" not in page.text
    assert page.status_code == 404 or "Runs and evaluations" in page.text


def test_another_site_cannot_read_the_pages_through_a_browser(storage: Storage) -> None:
    assert TestClient(app(storage), base_url="http://evil.example").get("/").status_code == 403


def test_damaged_tables_are_a_sentence(storage: Storage, client: TestClient) -> None:
    place = RunLayout("r").iteration(2, "e0001-abcdef").round(0)
    storage.write_bytes(place.trajectories, b"no parquet")
    page = client.get("/runs/r/iterations-000002")
    assert page.status_code == 503
    assert "Traceback" not in page.text


WRONG: dict[str, Callable[[pa.Table], pa.Table]] = {
    "lacks a column": lambda table: table.drop_columns(["question"]),
    "has another type": lambda table: table.set_column(2, "sample", pa.array(["0", "1", "2"])),
    "lacks values": lambda table: table.set_column(0, "id", pa.array(["q:1-0", None, "q:1-2"])),
    "has an unknown status": lambda table: table.set_column(5, "status", pa.array(["gone"] * 3)),
    "is of others": lambda table: pa.table({"a": [1]}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_table_of_another_content_is_a_sentence(storage: Storage, client: TestClient, wrong: str) -> None:
    place = RunLayout("r").iteration(2, "e0001-abcdef").round(0)
    stored(storage, place.trajectories, WRONG[wrong](storage.read_table(place.trajectories)))
    page = client.get(f"/runs/r/iterations-000002/{played(0, '42').id}")
    assert page.status_code == 503
    assert "is no table of trajectories" in page.text
    done = CliRunner().invoke(command, ["show", f"r/{played(0, '42').id}", "--root", storage.settings.root])
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)


def test_a_step_with_other_log_probs_than_tokens_is_a_sentence(storage: Storage, client: TestClient) -> None:
    place = RunLayout("r").iteration(2, "e0001-abcdef").round(0)
    first, *others = from_table(storage.read_table(place.trajectories))
    first.sampled()[0].logprobs.append(-1.0)
    stored(storage, place.trajectories, to_table([first, *others]))
    page = client.get(f"/runs/r/iterations-000002/{first.id}")
    assert page.status_code == 503
    assert "not as many log-probs as tokens" in page.text


def test_tokens_have_their_text_where_the_tokenizer_is_and_numbers_elsewhere(tmp_path: Path) -> None:
    sampled = played(0, "1").sampled()[0]
    assert [token.text for token in action(sampled, decoder(str(tmp_path))).tokens] == ["5", "6"]
    assert all(token.text for token in action(sampled, decoder(POLICY)).tokens)
    assert Token("a", 1, 0.0).shade == 0.0
    assert Token("a", 1, -5.0).shade > 0.9
    assert action(sampled.model_copy(update={"token_ids": [-1, -1]}), str).tokens == []


def test_the_learners_log_probs_stand_beside_those_of_the_engine(storage: Storage, client: TestClient) -> None:
    address = "/runs/r/iterations-000002/q:1-0"
    assert "learner" not in client.get(address).text
    rows = [
        {"trajectory": "q:1-0", "step": 0, "logprobs": [-0.1001, -2.5]},
        {"trajectory": "q:1-1", "step": 0, "logprobs": [0.0]},
    ]
    place = RunLayout("r").iteration(2, "e0002-abcdef")
    storage.write_table(place.token_logprobs, pa.Table.from_pylist(rows, schema=TOKEN_LOGPROBS_SCHEMA))
    page = client.get(address).text
    assert "log-probability -2.40, for the learner -2.60" in page
    assert "by -0.2 nats" in page
    assert "6: -2.3000 nats, learner -2.5000 (-0.2000)" in page
    assert page.count('class="differs"') == 1
    assert "the learner" not in client.get("/runs/r/iterations-000002/q:1-1").text  # of another number of tokens


def test_a_fork_of_the_tree_is_one_deeper() -> None:
    found = branches(played(0, "1"))
    assert [(each.number, each.depth, each.children) for each in found] == [(0, 0, 2), (1, 1, 1), (2, 1, 0), (3, 1, 0)]


@pytest.mark.process
def test_a_page_can_be_sent_as_a_file_that_needs_nothing_else(storage: Storage, tmp_path: Path) -> None:
    (table,) = [key for key in storage.list("runs") if is_trajectories(key)]
    alone = page(storage, "r", table, "q:1-0")
    assert "forty-two" in alone
    assert "href=" not in alone.replace('<link rel="icon" href="data:,">', "")
    written = nbrl("show", "r/q:1-0", "--root", storage.settings.root, "--html", "page.html", folder=tmp_path)
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "page.html").read_text() == alone
    both = nbrl("show", "r/q:1-0", "--root", storage.settings.root, "--html", "a", "--notebook", "b", folder=tmp_path)
    assert both.returncode == 1


@pytest.mark.attack(
    tried="A folder among the runs whose name is no text, or is a page's own words",
    wall="what cannot be the name of a run is none",
    effect="the page shows the others",
)
def test_a_folder_that_no_run_can_be_named_is_not_listed(storage: Storage, client: TestClient) -> None:
    for kind in (b"runs", b"evaluations"):
        for name in (b"bad\xff", b"<b>", b"-r", b"a" * 101, b"new\nline"):
            folder = os.path.join(os.fsencode(storage.settings.root), kind, name, b"iterations/000000/rollout-0")
            os.makedirs(folder)
            with open(os.path.join(folder, b"trajectories.index.parquet"), "wb") as file:
                file.write(b"x")
    assert Reading(storage).names() == [("runs", "r")]
    page = client.get("/")
    assert (page.status_code, page.text.count('href="/runs/'), page.text.count('href="/evaluations/')) == (200, 1, 0)
    assert newest_uri(storage) is None
    done = CliRunner().invoke(command, ["show", "s", "--root", storage.settings.root])
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)


def test_a_storage_without_runs_shows_how_to_make_one(tmp_path: Path) -> None:
    empty = Storage(StorageSettings(root=str(tmp_path / "empty")))
    assert "nbrl train" in TestClient(app(empty), base_url="http://localhost").get("/").text
    assert newest_uri(empty) is None


def test_the_mlflow_of_a_strangers_run_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path / "root")))
    config = load("tiny-cpu", [f"storage.root={tmp_path}/root", f"tracking.uri=sqlite:///{tmp_path}/mine.db"])
    run = open_run(config, "r", storage)[0]
    take(storage, run.layout, config.model_dump(mode="json"))
    assert newest_uri(storage) == f"sqlite:///{tmp_path}/mine.db"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert newest_uri(storage) is None


@pytest.fixture
def served(storage: Storage) -> Iterator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app(storage), host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)


FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET = ["--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--window-size=1100,1400"]


@pytest.mark.process
@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/", marks=pytest.mark.more),
        pytest.param("/runs/r", marks=pytest.mark.more),
        pytest.param("/runs/r/iterations-000002", marks=pytest.mark.more),
        "/runs/r/iterations-000002/q:1-1",
    ],
)
def test_a_browser_shows_the_page_without_a_fault(served: str, tmp_path: Path, path: str) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium: install the package of this name")
    picture = tmp_path / "page.png"
    line = [browser, *FLAGS, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", f"{served}{path}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr
    assert picture.stat().st_size > 5_000  # an empty page takes less
