"""Programs as agents: real ones in the real sandbox, whose requests a policy of the test answers."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbrl.agent.episode import Task
from nbrl.agent.errors import AgentError
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.functions import FunctionTool
from nbrl.agent.trajectory import ROOT, Node, Status, Trajectory
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings
from nbrl.tasks.rollout.program_episode import ReadTokens, limits_for, programs_of
from nbrl.tasks.rollout.samplers import Sampler
from tests.agent.families import FAMILIES, write_folder
from tests.agent.test_recorder import Engine, assert_sampled

pytestmark = pytest.mark.sandbox
TASK = Task(id="t.0", group="t", sample=0, question="How many lamps?", ability="qa", seed=1)
ASK = """
import json, os, sys, urllib.request

def ask(messages, path=os.environ["OPENAI_BASE_URL"] + "/chat/completions", **more):
    body = json.dumps({"model": "policy", "messages": messages, **more}).encode()
    request = urllib.request.Request(path, body, {"Content-Type": "application/json"})
    return urllib.request.urlopen(request)
"""
LOOP = """
chat = [{"role": "user", "content": sys.stdin.read()}]
for _ in range(3):
    chat.append(json.load(ask(chat))["choices"][0]["message"])
    chat.append({"role": "user", "content": "go on"})
print("lamps:", chat[-2]["content"])
"""


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversations]:
    folder = write_folder(tmp_path_factory.mktemp("family") / "qwen2_5", FAMILIES["qwen2_5"])
    return Conversations.load(ChatTokenizer.load(folder), AgentSettings())


def play(
    conversations: Conversations,
    folder: Path,
    code: str,
    sample: Callable[[int, list[int]], list[int]] | None = None,
    **more: object,
) -> tuple[Trajectory, Engine]:
    """Run a program once, in the folder that the sandbox shows as /opt/program."""
    (folder / "agent.py").write_text(ASK + code)
    folder.chmod(0o755)
    given = {"kind": "program", "command": ["python", "/opt/program/agent.py"], "folder": str(folder), "deadline_s": 20, **more}
    settings = AgentSettings.model_validate(given)

    async def never() -> bool:
        return False

    engine = Engine(sample or (lambda number, _: conversations.tokenizer.encode_action(f"{number}")))

    sampler = Sampler(engine, never, lambda: 0.0)

    async def run() -> Trajectory:
        limits = limits_for(settings, SandboxSettings(warm=1))
        async with programs_of(conversations, limits) as programs, KernelPool(limits) as pool, pool.kernel() as kernel:
            return await programs.play(TASK, sampler, kernel, Toolbox([FunctionTool(add)]), settings)

    return asyncio.run(run()), engine


def test_a_program_of_a_few_lines_is_an_agent(conversations: Conversations, tmp_path: Path) -> None:
    made, engine = play(conversations, tmp_path, LOOP)
    assert (made.status, made.answer, len(made.steps)) == (Status.ANSWERED, "lamps: 2", 3)
    assert [step.observation for step in made.steps] == ["user: How many lamps?", "user: go on", "user: go on"]
    assert [node.kind for node in made.nodes] == ["task", "sampled", "observation", "sampled", "observation", "sampled"]
    assert_sampled(made, engine)
    assert {file.path: file.data for file in made.files} == {"stdout": b"lamps: 2\n"}


@pytest.mark.more
@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"reads": "argument"}, "text = sys.argv[-1]; print(json.load(ask([{'role': 'user', 'content': text}])) and text)"),
        (
            {"reads": "file", "answer": "file"},
            "text = open('question.txt').read(); ask([{'role': 'user', 'content': text}]); open('answer.txt', 'w').write(text)",
        ),
        (
            {"answer": "call"},
            "text = sys.stdin.read(); ask([{'role': 'user', 'content': text}]); print('noise')\n"
            "ask([], os.environ['NBRL_ADDRESS'] + '/answer', answer=text)",
        ),
    ],
    ids=["argument", "file", "call"],
)
def test_questions_and_answers_go_the_ways_that_settings_name(
    conversations: Conversations, tmp_path: Path, settings: dict[str, str], code: str
) -> None:
    made, _ = play(conversations, tmp_path, code, **settings)
    assert (made.status, made.answer) == (Status.ANSWERED, TASK.question)


def test_a_stream_says_the_same(conversations: Conversations, tmp_path: Path) -> None:
    code = """
lines = ask([{"role": "user", "content": "x"}], stream=True).read().decode().splitlines()
chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
print("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks), lines[-2])
"""
    made, _ = play(conversations, tmp_path, code, lambda *_: conversations.tokenizer.encode_action("two\nlines"))
    assert made.answer == "two\nlines data: [DONE]"


def test_the_messages_api_says_the_same(conversations: Conversations, tmp_path: Path) -> None:
    code = """
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
first = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
said = json.load(ask(first, url, max_tokens=99, system="be brief"))
more = [*first, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "y"}]
ask(more, url, max_tokens=99, system="be brief")
lines = ask(first, url, max_tokens=99, stream=True).read().decode().splitlines()
print(said["content"][0]["text"], said["stop_reason"], [line for line in lines if "event" in line][-1])
"""
    made, engine = play(conversations, tmp_path, code)
    assert made.answer == "0 end_turn event: message_stop"
    behind = [made.nodes[node.parent].kind for node in made.nodes if node.parent != ROOT]
    assert behind.count("sampled") == 1  # the second request goes on behind the answer to the first
    assert_sampled(made, engine)


def test_tools_are_there_by_mcp_and_calls_are_recorded_with_the_step_before(conversations: Conversations, tmp_path: Path) -> None:
    code = """
def call(method, **parameters):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
    request = urllib.request.Request(os.environ["NBRL_MCP"], body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request)).get("result")

names = [tool["name"] for tool in call("tools/list")["tools"]]
chat = [{"role": "user", "content": "x"}]
ask(chat)
three = call("tools/call", name="add", arguments={"a": 1, "b": 2})["content"][0]["text"]
wrong = call("tools/call", name="add", arguments={"a": "x"})
ask(chat)
print(names, three, wrong["isError"], call("tools/call", name="os.system", arguments={}))
"""
    made, _ = play(conversations, tmp_path, code)
    assert made.answer == "['add'] 3 True None"
    assert [[(call.arguments, call.ok) for call in step.tool_calls] for step in made.steps] == [
        [('{"a": 1, "b": 2}', True), ('{"a": "x"}', False)],
        [],
    ]


@pytest.mark.more
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('no key')", "ended without a request to the model: no key"),
        ("import nothing_like_this", "No module named 'nothing_like_this'"),
        ("import time; time.sleep(60)", "did not end in time without a request"),
    ],
)
def test_a_program_that_never_asks_is_no_trajectory(conversations: Conversations, tmp_path: Path, code: str, reason: str) -> None:
    with pytest.raises(AgentError, match=reason):
        play(conversations, tmp_path, code, deadline_s=3)


def test_a_command_that_is_not_there_is_named(conversations: Conversations, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="No such file or directory: '/opt/program/nothing'"):
        play(conversations, tmp_path, "", command=["/opt/program/nothing"])


def test_a_program_that_does_not_end_is_ended(conversations: Conversations, tmp_path: Path) -> None:
    code = "ask([{'role': 'user', 'content': 'x'}])\nprint('so far', flush=True)\nimport time; time.sleep(60)"
    made, _ = play(conversations, tmp_path, code, deadline_s=3)
    assert (made.status, made.answer, len(made.steps)) == (Status.TIMEOUT, "so far", 1)


HOSTILE = """
import socket, urllib.error
ask([{"role": "user", "content": "x"}])
found = []
def tried(name, work):
    try:
        found.append((name, work()))
    except urllib.error.HTTPError as error:
        found.append((name, error.code))
    except OSError as error:
        found.append((name, type(error).__name__))
base = os.environ["NBRL_ADDRESS"].partition("/sessions")[0]
tried("foreign", lambda: ask([], base + "/sessions/" + "a" * 22 + "/v1/chat/completions"))
tried("large", lambda: ask([{"role": "user", "content": "x" * (17 << 20)}]))
tried("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
inet = socket.socket()
tried("buffer", lambda: inet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24))
tried("ulp", lambda: inet.setsockopt(6, 31, b"tls"))
tried("delay", lambda: inet.setsockopt(6, 1, 1))
tried("usual", lambda: max(inet.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_RCVBUF, socket.SO_SNDBUF)) <= 1 << 17)
tried("out", lambda: socket.create_connection(("10.0.0.1", 80), 1))
tried("write", lambda: open("/opt/program/agent.py", "a"))
tried("host", lambda: open("/root/.bashrc"))
codes = set()
for _ in range(100):
    try:
        ask([{"role": "user", "content": "x"}])
    except urllib.error.HTTPError as error:
        codes.add(error.code)
print(found, codes)
"""


def test_a_hostile_program_reaches_nothing_but_its_own_session(conversations: Conversations, tmp_path: Path) -> None:
    made, engine = play(conversations, tmp_path, HOSTILE, max_steps=5)
    assert made.answer == str(
        [
            ("foreign", 404), ("large", 413), ("udp", "OSError"),
            ("buffer", "PermissionError"), ("ulp", "PermissionError"), ("delay", None),
            ("usual", True), ("out", "OSError"), ("write", "PermissionError"),
            ("host", "FileNotFoundError"),
        ]
    ) + " {403}"  # fmt: skip
    assert len(engine.calls) == 5


def test_more_connections_than_it_may_have_cost_a_program_no_later_one(conversations: Conversations, tmp_path: Path) -> None:
    code = """
import socket
from urllib.parse import urlsplit
where = urlsplit(os.environ["NBRL_ADDRESS"])
many = [socket.create_connection((where.hostname, where.port)) for _ in range(60)]
import time; time.sleep(0.5)
for each in many:
    each.close()
time.sleep(0.5)
print(json.load(ask([{"role": "user", "content": "x"}]))["choices"][0]["message"]["content"])
"""
    made, _ = play(conversations, tmp_path, code)
    assert (made.status, made.answer) == (Status.ANSWERED, "0")


def test_requests_at_once_are_branches(conversations: Conversations, tmp_path: Path) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as threads:
    print(len([*threads.map(lambda number: json.load(ask([{"role": "user", "content": "s" * (number % 3)}])), range(8))]))
"""
    made, engine = play(conversations, tmp_path, code)
    assert (made.answer, len(made.steps)) == ("8", 8)
    assert_sampled(made, engine)


def test_an_engine_that_is_gone_is_an_infrastructure_fault(conversations: Conversations, tmp_path: Path) -> None:
    def gone(number: int, _: list[int]) -> list[int]:
        raise AgentError("the engine is gone")

    with pytest.raises(AgentError, match="the engine is gone"):
        play(conversations, tmp_path, LOOP, gone)


def test_a_program_needs_a_command() -> None:
    with pytest.raises(ValueError, match="needs a command"):
        AgentSettings(kind="program")


def test_what_was_read_again_is_said_once() -> None:
    reading = ReadTokens()
    node = Node(parent=ROOT, kind="task", step=0, token_ids=[1] * 50)
    made: Any = SimpleNamespace(nodes=[node, node], again=0)
    reading.add(made)
    assert reading.price() == ""
    made.again = 30
    reading.add(made)
    assert "30 of 200 tokens (15%) of the first 2 trajectories" in reading.price()
    assert reading.price() == ""
