"""`nbrl agent` against a server that plays written actions, in a real sandbox, with the training stack out of reach."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from nbrl.agent.trajectory import Status, Trajectory
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.recipes import load as load_recipe
from tests.flows.model_server import ModelServer, act, model_server
from tests.flows.typed import REFUSE, REPOSITORY, nbrl
from tests.processes import heed_interrupts

pytestmark = pytest.mark.process

START = f"""{REFUSE}
sys.argv[0] = "nbrl"
from nbrl.flows.cli.main import main
main()
"""
ANSWER = act("submit_final_answer(x + 22)")


def start(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", START, "agent", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"} | environment,
        preexec_fn=heed_interrupts,
    )


def run(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return nbrl("agent", *arguments, folder=folder, extras=False, COLUMNS="200", **environment)


@pytest.fixture(params=["sglang", pytest.param("chat", marks=pytest.mark.more)])
def speaks(request: pytest.FixtureRequest) -> bool:
    """Whether the server is a SGLang server."""
    return bool(request.param == "sglang")


def test_a_question_is_answered_shown_and_saved(tmp_path: Path, speaks: bool) -> None:
    with model_server(act("x = 20\nprint('seen')", "[red]look[/red] \x1b[2J"), "no tags", ANSWER, sglang=speaks) as server:
        done = run(tmp_path, "What is it?", "--endpoint", server.url)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    for words in (
        "What is it?",
        "[red]look[/red] \ufffd[2J",
        "print('seen')",
        "seen\n",
        "no <think> block",
        "answered after 3 steps",
    ):
        assert words in done.stderr
    assert "\x1b" not in done.stderr
    (saved,) = tmp_path.glob("nbrl-*.ipynb")
    assert saved.name in done.stderr
    made = nbformat.read(saved, 4)
    nbformat.validate(made)
    assert made.cells[2].outputs[0].text == "seen\n"


def test_the_trajectory_comes_as_json_and_nothing_is_saved(tmp_path: Path, speaks: bool) -> None:
    with model_server(act("print('\\ud800')"), act("submit_final_answer('ok')"), sglang=speaks) as server:
        done = run(tmp_path, "q", "--endpoint", server.url, "--json", "--quiet", "--no-save", "--set", "seed=5")
    assert (done.returncode, done.stderr) == (0, "")
    found = Trajectory.model_validate_json(done.stdout)
    assert (found.status, found.answer, len(found.steps)) == (Status.ANSWERED, "ok", 2)
    first = server.asked[0]
    assert (first["sampling_params"]["sampling_seed"] if speaks else first["seed"]) == 5
    assert not list(tmp_path.iterdir())


@pytest.mark.more
def test_files_corpus_and_pictures_are_at_hand(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    (tmp_path / "corpus.jsonl").write_text('{"passage": "Tilo was born in Keldra."}\n{"passage": "The Vorn is a river."}\n')
    picture = (
        "import struct, zlib\nfrom IPython.display import Image\n"
        "part = lambda k, b: struct.pack('>I', len(b)) + k + b + struct.pack('>I', zlib.crc32(k + b))\n"
        "head = part(b'IHDR', struct.pack('>IIBBBBB', 64, 48, 8, 0, 0, 0, 0))\n"
        "body = part(b'IDAT', zlib.compress((b'\\0' + b'x' * 64) * 48)) + part(b'IEND', b'')\n"
        "Image(data=bytes([137]) + b'PNG\\r\\n' + bytes([26, 10]) + head + body)"
    )
    cells = [
        "print(open('data.csv').read(), search('Tilo born'), inspect_file('data.csv'))",
        picture,
        "submit_final_answer('ok')",
    ]
    with model_server(*map(act, cells)) as server:
        files = ["--file", str(tmp_path / "data.csv"), "--corpus", str(tmp_path / "corpus.jsonl")]
        done = run(tmp_path, "q", "--endpoint", f"{server.url}/v1", "--sees-images", *files, "--save", "out.ipynb")
    assert done.returncode == 0, done.stderr
    assert "Tilo was born in Keldra." in done.stderr
    assert done.stderr.count("1,2") >= 2
    assert "[image 64x48]" in done.stderr
    assert "data.csv" in json.dumps(server.asked[0])
    assert "image_url" in json.dumps(server.asked[2])
    made = nbformat.read(tmp_path / "out.ipynb", 4)
    assert "image/png" in made.cells[4].outputs[0].data


@pytest.mark.more
def test_a_question_without_an_answer_ends_with_three(tmp_path: Path, speaks: bool) -> None:
    with model_server(act("x = 1"), sglang=speaks) as server:
        done = run(tmp_path, "q", "--endpoint", server.url, "--set", "agent.max_steps=2", "--save", "out.ipynb")
    assert (done.returncode, done.stdout) == (3, "")
    assert "step_limit after 2 steps" in done.stderr
    assert nbformat.read(tmp_path / "out.ipynb", 4).metadata.nbrl.status == "step_limit"


@pytest.mark.more
def test_a_model_that_reads_less_than_it_may_be_given_is_refused(tmp_path: Path, speaks: bool) -> None:
    with model_server(ANSWER, sglang=speaks) as server:
        server.limit = 8_192
        refused = run(tmp_path, "q", "--endpoint", server.url)
        smaller = ["--set", "agent.context_tokens=8192"]
        fits = run(tmp_path, "q", "--endpoint", server.url, "--model", "any", *smaller, "--no-save")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "reads at most 8192 tokens; set agent.context_tokens to 8192" in refused.stderr
    assert not list(tmp_path.iterdir())
    assert fits.returncode == 3, fits.stderr
    assert "NameError" in fits.stderr


def test_a_question_without_room_for_an_action_says_so(tmp_path: Path) -> None:
    with model_server(ANSWER) as server:
        little = ["--set", "agent.context_tokens=150", "--set", "agent.action_tokens=64"]
        done = run(tmp_path, "q", "--endpoint", server.url, *little)
    assert (done.returncode, done.stdout) == (3, "")
    assert "raise agent.context_tokens or lower agent.action_tokens" in done.stderr


def test_the_key_goes_to_the_server_and_nowhere_else(tmp_path: Path, speaks: bool) -> None:
    with model_server(act("import os; print(dict(os.environ))"), act("submit_final_answer(1)"), sglang=speaks) as server:
        done = run(tmp_path, "q", "--endpoint", server.url, "--json", "--api-key-env", "MY_KEY", MY_KEY="sk-secret")
    assert done.returncode == 0, done.stderr
    assert {headers.get("Authorization") for headers in server.headers} == {"Bearer sk-secret"}
    saved = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "sk-secret" not in done.stdout + done.stderr + saved


@pytest.mark.more
def test_text_that_cannot_be_sent_ends_nothing(tmp_path: Path) -> None:
    with model_server(act("x = 1", "half \ud800"), act("submit_final_answer('ok')")) as server:
        done = run(tmp_path, os.fsdecode(b"caf\xe9"), "--endpoint", server.url, "--save", "out.ipynb")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert "half ?" in nbformat.read(tmp_path / "out.ipynb", 4).cells[1].source


@pytest.mark.more
def test_abilities_and_own_tools_come_from_a_file_beside_which_their_module_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('def double(n: int) -> int:\n    """Doubles a number."""\n    return 2 * n\n')
    tools = "{abilities: {sums: [double], none: []}, own: {double: 'mine:double'}}"
    (tmp_path / "tools.yaml").write_text(f"rollout: {{tools: {tools}}}\n")
    options = ["--recipe", "tools.yaml", "--ability", "sums", "--no-save"]
    with model_server(act("submit_final_answer(double(21))")) as server:
        done = run(tmp_path, "q", "--endpoint", server.url, *options)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


PIXEL = (
    "open('a.png', 'wb').write(bytes([137]) + b'PNG\\r\\n' + bytes([26, 10]))\n"
    "submit_final_answer(visual_qa('a.png', 'what is it?'))"
)


@pytest.mark.more
def test_visual_qa_asks_the_model(tmp_path: Path) -> None:
    with model_server(act(PIXEL), "a dot") as server:
        model = f"{{base_url: '{server.url}/v1', name: scripted, key: null}}"
        named = ["--set", "rollout.tools.default=[visual_qa]", "--set", f"rollout.tools.model={model}"]
        done = run(tmp_path, "q", "--endpoint", f"{server.url}/v1", *named, "--no-save")
    assert (done.returncode, done.stdout) == (0, "a dot\n"), done.stderr
    assert server.asked[1]["messages"][0]["content"][0]["text"] == "what is it?"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{read_page: {max_chars: 1}}", "rollout.tools.read_page.max_chars in "),
        ("{default: [serch]}", "there is no tool 'serch'"),
        ("{model: 3, default: [visual_qa]}", "rollout.tools.model in "),
    ],
)
def test_a_recipe_whose_tools_cannot_work_is_named_with_its_key(tmp_path: Path, written: str, words: str) -> None:
    (tmp_path / "tools.yaml").write_text(f"rollout: {{tools: {written}}}")
    done = run(tmp_path, "q", "--endpoint", "http://127.0.0.1:9", "--recipe", "tools.yaml")
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("nbrl: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.more
def test_the_files_that_the_agent_made_come_out_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    cell = (
        "import os; os.makedirs('plots/deep'); open('plots/deep/one.txt', 'w').write('made'); os.symlink('/etc/passwd', 'link'); "
        "os.mkfifo('pipe'); submit_final_answer(1)"
    )
    with model_server(act(cell), sglang=True) as server:
        options = ["--endpoint", server.url, "--file", "data.csv", "--files-to", "out", "--no-save"]
        done = run(tmp_path, "q", *options)
        again = run(tmp_path, "q", *options)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert [path.relative_to(tmp_path).as_posix() for path in (tmp_path / "out").rglob("*") if not path.is_dir()] == [
        "out/plots/deep/one.txt"
    ]
    assert (
        "files of the agent written to out: 1; left out: link (not a regular file); left out: pipe (not a regular file)"
        in done.stderr
    )
    assert again.returncode == 1
    assert "--files-to out has files in it; name a folder that is new or empty" in again.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.more)])
def test_what_was_done_before_ctrl_c_is_saved(tmp_path: Path, ending: signal.Signals) -> None:
    with model_server(act("print('done before')"), None, sglang=True) as server:
        process = start(tmp_path, "q", "--endpoint", server.url, "--save", "out.ipynb")
        try:
            _wait_for(server, 2)
            process.send_signal(ending)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "what was done until then is in out.ipynb" in err
    made = nbformat.read(tmp_path / "out.ipynb", 4)
    assert made.cells[2].outputs[0].text == "done before\n"


def _wait_for(server: ModelServer, requests: int) -> None:
    deadline = time.monotonic() + 60
    while len(server.asked) < requests:
        assert time.monotonic() < deadline, "the model was not asked in time"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--endpoint", "http://127.0.0.1:9"], "nothing answers at http://127.0.0.1:9"),
        (["--endpoint", "ftp://x"], "is not an address"),
        (["--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY holds no usable key"),
        (["--file", "missing.csv"], "there is no file missing.csv"),
        (["--corpus", "missing.txt"], "missing.txt cannot be read"),
        (["--ability", "qa"], "rollout.tools has no ability 'qa'"),
        (["--save", "a.ipynb", "--no-save"], "contradict"),
        (["--set", "rollout.tools.mcp.mine.command=[/no/such/program]"], "the MCP server mine cannot be reached"),
        (["--recipe", "missing.yaml"], "there is no recipe 'missing.yaml'"),
        (["--recipe", os.devnull], "there is no recipe"),
        (["--set", "agent.context_tokens=100"], "must be below context_tokens"),
        (["--save", "no/folder.ipynb"], "there is no folder no"),
        (["--tokenizer", "."], "tokenizer.json"),
        (["--sees-images"], "is for chat APIs"),
        (["--file", "no\x1b[2J"], "no\ufffd[2J"),
        (["--endpoint", "http://127.0.0.1:99999"], "is not an address"),
        (["--endpoint", f"http://{'a' * 70}.example"], "nothing answers at"),
    ],
)
def test_what_cannot_work_is_one_error_and_leaves_nothing(tmp_path: Path, options: list[str], words: str) -> None:
    with model_server(ANSWER, sglang=True) as server:
        done = run(tmp_path, "q", "--endpoint", server.url, *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("nbrl: ") == 1
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.attack(
    tried="A pipe, or a sparse file of a terabyte, as a file of the command line's",
    wall="files of words are read where they are files of a bounded size",
    effect="one sentence",
)
def test_a_pipe_is_no_file_of_words(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recipe(str(tmp_path / "large"))
    for options in (["--recipe"], ["--corpus"], ["--file"], ["--replay"]):
        done = run(tmp_path, "q", "--endpoint", "http://127.0.0.1:9", *options, "pipe")
        assert (done.returncode, done.stdout, done.stderr.count("nbrl: ")) == (1, "", 1)
        assert "pipe" in done.stderr
        assert "Traceback" not in done.stderr


def test_an_empty_question_is_refused(tmp_path: Path) -> None:
    for question in ([], [" \n"]):
        done = run(tmp_path, *question, "--endpoint", "http://127.0.0.1:9")
        assert (done.returncode, done.stdout) == (1, "")
        assert "there is no question" in done.stderr


def test_a_server_that_fails_is_an_error_after_what_was_done_is_saved(tmp_path: Path) -> None:
    with model_server(act("print('before')"), "", sglang=False) as server:
        server.fail_after = 1
        done = run(tmp_path, "q", "--endpoint", server.url, "--save", "out.ipynb")
    assert (done.returncode, done.stdout) == (1, "")
    assert "answered 400" in done.stderr
    assert nbformat.read(tmp_path / "out.ipynb", 4).cells[2].outputs[0].text == "before\n"


def test_help_needs_nothing_of_the_training_stack(tmp_path: Path) -> None:
    process = start(tmp_path, "--help")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "--endpoint" in out


OWN_TOOL = """
from nbrl.agent.tools.functions import tool

@tool
def depth(place: str) -> float:
    \"\"\"Gives the depth of a place in metres.\"\"\"
    return 22.0
"""


@pytest.mark.long
def test_an_installation_without_extras_is_enough_beside_a_project_with_folders_of_the_same_names(tmp_path: Path) -> None:
    uv = shutil.which("uv") or REPOSITORY / ".venv-uv/bin/uv"
    venv, project = tmp_path / "venv", tmp_path / "project"
    make = [[uv, "venv", "-q", "--python", sys.executable, venv], [uv, "pip", "install", "-q", "--python", venv, REPOSITORY]]
    for command in make:
        subprocess.run(list(map(str, command)), check=True, timeout=900)
    (project / "tasks").mkdir(parents=True)
    for name in ("tasks/__init__.py", "agent.py", "flows.py", "infra.py", "sandbox.py"):
        (project / name).write_text("raise RuntimeError('this module is the project's own')\n")
    (project / "mine.py").write_text(OWN_TOOL)
    with model_server(act("x = 20"), act("submit_final_answer(x + depth('here'))"), sglang=True) as server:
        command = [
            str(venv / "bin/nbrl"),
            "agent",
            "q",
            "--endpoint",
            server.url,
            "--no-save",
            "-q",
            "--set",
            "rollout.tools.own.depth=mine:depth",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=project, check=False)
    assert (done.returncode, done.stdout) == (0, "42.0\n"), done.stderr
