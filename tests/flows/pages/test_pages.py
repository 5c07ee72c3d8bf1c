"""The pages of trajectories: what they show, and that nothing a model wrote acts on them."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from markupsafe import Markup, escape
from starlette.testclient import TestClient
from typer.testing import CliRunner

from nbrl.agent.trajectory import Node, Output, Status, Step, ToolCall, Trajectory, from_table, to_table
from nbrl.flows.cli.commands import app as command
from nbrl.flows.cli.ui import newest_uri
from nbrl.flows.pages.app import app, page
from nbrl.flows.pages.text import block, python
from nbrl.flows.pages.tokens import Token, action, branches, decoder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.learner.batch.token_logprobs import TOKEN_LOGPROBS_SCHEMA
from nbrl.tasks.reward.score import SCHEMA as REWARDS
from nbrl.tasks.rollout.chunks import index_of, write
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.opening import open_run
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.trajectories import read_trajectories
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
    for words in (
        "forty-two",
        "success <b>1</b>",
        "tidy <b>0.25</b>",
        "2 tokens, log-probability -2.40",
        "2 ways on",
        "search(",
        "q:1-1",
    ):
        assert words in page.text, words


@pytest.mark.parametrize("path", ["/runs/r/iterations-000002", "/runs/r/iterations-000002/q:1-1"])
def test_nothing_that_a_model_wrote_acts_on_a_page(client: TestClient, path: str) -> None:
    page = client.get(path).text
    assert page.count("<script") == page.count('<script src="/pages.js" defer></script>') == 1
    assert "<img src=x" not in page
    assert "<svg" not in page
    assert "{{ 7*7 }}" in page or "49" not in page
    assert page.count("data:image/png") == page.count("<img ")
    assert "default-src 'none'; style-src 'sha256-" in page
    assert " style=" not in page
    assert "'unsafe" not in page


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=failed", ["q:1-2"]),
        ("text=42", ["q:1-0"]),
        ("text=forty-two", ["q:1-0", "q:1-1", "q:1-2"]),
        ("environment=e/a&result=wrong", ["q:1-1", "q:1-2"]),
        ("environment=other", []),
        ("order=reward", ["q:1-1", "q:1-2", "q:1-0"]),
        ("order=-trajectory", ["q:1-2", "q:1-1", "q:1-0"]),
        ("order=none&page=x", ["q:1-0", "q:1-1", "q:1-2"]),
        ("page=2", []),
    ],
)
def test_a_list_is_filtered_and_ordered(client: TestClient, query: str, found: list[str]) -> None:
    page = client.get(f"/runs/r/iterations-000002?{query}").text
    assert re.findall(r'id">(q:1-\d)<', page) == found


def test_next_and_previous_are_those_of_the_chosen_list(client: TestClient) -> None:
    page = client.get("/runs/r/iterations-000002/q:1-2?order=-trajectory&result=wrong").text
    assert "1 of 2" in page
    assert 'rel="next" href="/runs/r/iterations-000002/q%3A1-1?result=wrong&amp;order=-trajectory"' in page
    assert 'rel="prev"' not in page


def test_another_stage_is_chosen_with_the_same_filters(client: TestClient) -> None:
    led = client.get("/runs/r?stage=iterations-000002&result=wrong&page=3", follow_redirects=False)
    assert (led.status_code, led.headers["location"]) == (303, "/runs/r/iterations-000002?result=wrong")
    assert client.get("/runs/r?stage=//evil.example", follow_redirects=False).headers["location"].startswith("/runs/r/%2F%2Fevil")


def test_what_has_finished_of_a_round_is_shown_before_its_table_is_there(storage: Storage, client: TestClient) -> None:
    place = RunLayout("r").iteration(3, "e0001-abcdef").round(0)
    for sample in (0, 1):
        write(storage, place.chunks("w"), to_table([played(0, "42"), played(sample, "43")]))
    assert "not complete" in client.get("/runs/r").text
    assert re.findall(r'id">(q:1-\d)<', client.get("/runs/r/iterations-000003").text) == ["q:1-0", "q:1-1"]
    assert client.get("/runs/r/iterations-000003/q:1-1").status_code == 200


def test_the_same_question_is_found_in_other_stages_and_runs(storage: Storage, client: TestClient) -> None:
    for name, number, others in (("r", 1, 0), ("s", 5, 0), ("t", 5, 1)):
        same = [played(0, "42").model_copy(update={"question": "Another?"}) if others else played(0, "42")]
        stored(storage, RunLayout(name).iteration(number, "e0001-abcdef").round(0).trajectories, to_table(same))
    address = "/runs/r/iterations-000002/q:1-0"
    page = client.get(address).text
    assert 'href="/runs/r/iterations-000001/q%3A1-0"' in page
    assert "/runs/s/" not in page
    page = client.get(f"{address}?elsewhere=1").text
    assert 'href="/runs/s/iterations-000005/q%3A1-0"' in page
    assert "/runs/t/" not in page
    assert "1 in 2 of 2 others" in page


def test_one_trajectory_is_read_from_its_own_part_alone(storage: Storage, client: TestClient) -> None:
    place = RunLayout("r").iteration(4, "e0001-abcdef").round(0)
    parts = [write(storage, place.chunks("w"), to_table([played(sample, "42")])) for sample in (0, 1)]
    index = pa.concat_tables([index_of([played(sample, "42")], *part) for sample, part in enumerate(parts)])
    storage.write_table(place.trajectories, index)
    storage.write_bytes(parts[1][0], b"damaged")
    assert [each.id for each in from_table(read_trajectories(storage, place.trajectories, "q:1-0"))] == ["q:1-0"]
    assert client.get("/runs/r/iterations-000004/q:1-1").status_code == 503


@pytest.mark.parametrize("code", ["(" * 60_000, "a" * 60_000, "'" * 40_000, EVIL, "x = 1\n\n"])
def test_code_in_colours_is_the_same_code(code: str) -> None:
    assert python(code).striptags().split() == Markup(escape(code)).striptags().split()
    assert "<script" not in python(code)


def test_a_long_block_shows_its_beginning() -> None:
    short, long = block("output", "output", "a\n" * 20), block("output", "output", "<b>\n" * 200)
    assert (str(short.beginning), long.lines) == ("", 200)
    assert (long.beginning.count("&lt;b&gt;"), long.whole.count("&lt;b&gt;")) == (10, 200)


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
    assert page.count(' differs"') == 1
    assert "the learner" not in client.get("/runs/r/iterations-000002/q:1-1").text  # of another number of tokens


def test_a_fork_of_the_tree_is_one_deeper() -> None:
    found = branches(played(0, "1"))
    assert [(each.number, each.depth, each.children) for each in found] == [(0, 0, 2), (1, 1, 1), (2, 1, 0), (3, 1, 0)]


@pytest.mark.process
def test_a_page_can_be_sent_as_a_file_that_needs_nothing_else(storage: Storage, tmp_path: Path) -> None:
    stored(storage, RunLayout("r").evaluation(2, "e0001-abcdef").round(0).trajectories, to_table([played(0, "41")]))
    alone = page(storage, "r", [key for key in storage.list("runs") if is_trajectories(key)][::-1], "q:1-0")
    for words in ("forty-two", "r, iteration 3", "r, evaluation after 2 updates"):
        assert words in alone, words
    assert "href=" not in alone.replace('<link rel="icon" href="data:,">', "")
    assert "<script" not in alone
    written = nbrl("show", "r/q:1-0", "--root", storage.settings.root, "--html", "page.html", folder=tmp_path)
    assert written.returncode == 0, written.stderr
    assert {file.name for file in tmp_path.glob("*.html")} == {"page.html"}
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
    page = client.get("/")
    assert (page.status_code, re.findall('href="(/[re][^"]+)', page.text)) == (200, ["/runs/r"])
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
