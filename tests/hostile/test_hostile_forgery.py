"""Forgery: a cell that speaks for its kernel, floods the tool channel, or looks for what earns reward

A cell shares its kernel's process, so it can send what the kernel could: that is inherent. Here it is shown to earn nothing.
"""

import secrets
import time

import pytest

from nbrl.agent.context.notepad import State, read_state
from nbrl.tasks.reward.score import score
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.rollout.notebooks import SandboxedKernel
from tests.hostile.arena import Arena, Kernel

pytestmark = pytest.mark.timeout(600)

_FORGE = """
k = get_ipython().kernel
def forge(kind, content, sock=None, parent=None):
    k.session.send(sock or k.iopub_socket, kind, content, parent=parent or k.get_parent("shell"), ident=k._topic(kind))
"""


@pytest.mark.attack(
    tried="Send `idle`, `stream`, `error`, `execute_result` for one's own cell, of any parent, early, late and after it",
    wall="inherent: taken as what the cell showed, no more; a cell counts as ended by its reply and its kernel's life",
    effect="text that the cell could have printed; the next cell runs or its kernel is `dead`",
)
def test_forged_outputs_are_only_outputs(arena: Arena, victim: Kernel) -> None:
    code = """
forge("status", {"execution_state": "idle"})
forge("stream", {"name": "stdout", "text": "forged"})
forge("stream", {"name": ["x"], "text": {"a": 1}})
forge("execute_result", {"data": {"text/plain": "42"}, "execution_count": "x", "metadata": 7})
forge("execute_result", {"data": [1]})
forge("error", {"ename": 1, "evalue": [2], "traceback": "x"})
forge("display_data", {"data": {"image/png": "!!!", "text/plain": None}})
forge("clear_output", {"wait": "yes"})
forge("shutdown_reply", {"restart": True})
forge("iopub_welcome", {})
forge("status", {"execution_state": "idle"}, parent={"header": {"msg_id": "other"}, "msg_id": "other", "session": ""})
"""
    done = victim.run(_FORGE + code)
    assert "forged" in done.outputs[0].text
    assert sum(len(output.text.encode()) for output in done.outputs) <= 2 * arena.settings.output_bytes
    assert victim.run("6 * 7").status in ("ok", "dead")
    assert arena.sibling.run("1").outputs[0].text == "1"


@pytest.mark.attack(
    tried="Answer for one's own cell (execute_reply) before it ends, then run on behind the host's back",
    wall="inherent; one kernel belongs to one trajectory, and its time and end to the host",
    effect="the cell seems done early; what runs on is killed with the kernel, and speaks for no other trajectory",
)
def test_a_forged_reply_gains_no_time(victim: Kernel) -> None:
    code = """
reply = {"status": "ok", "user_expressions": 5}
ident = k._get_shell_context_var(k._shell_parent_ident)
k.session.send(k.shell_stream, "execute_reply", reply, parent=k.get_parent("shell"), ident=ident)
forge("status", {"execution_state": "idle"})
while True: pass
"""
    done = victim.run(_FORGE + code, timeout=1.0)
    assert (done.status, done.expressions) == ("ok", {})  # the lie is heard; as a state it says nothing
    assert victim.run("1", timeout=1.0).status in ("timeout", "dead")


@pytest.mark.attack(
    tried="Sign with other keys, with none, as a sibling",
    wall="each kernel has a key and connections of its own",
    effect="what is not signed by this kernel is not heard; what is signed by it is heard as this kernel's",
)
def test_messages_cannot_be_signed_for_another(arena: Arena, victim: Kernel) -> None:
    code = """
k.session.key = {key!r}
forge("stream", {{"name": "stdout", "text": "signed by another"}})
print("printed")
"""
    for key in (b"", b"0" * 32, arena.secrets[-1].encode()):
        victim.run(_FORGE + code.format(key=key), timeout=0.5)
        assert "signed by another" not in "".join(victim.said)


@pytest.mark.attack(
    tried="Report an answer, a notepad, a state that the agent's prelude never made: wrong types, too deep, too large, too much",
    wall="the host validates and caps the state; the score is of the answer's text alone, against references only the host has",
    effect="a forged answer scores what the same answer submitted would; nonsense leaves the state as it was",
)
def test_a_forged_state_earns_what_its_text_earns(arena: Arena, victim: Kernel) -> None:
    truth = f"nbrl-canary-truth-{secrets.token_hex(16)}"
    arena.secrets.append(truth)
    wired = SandboxedKernel(victim.kernel)
    before = State(answer="as it was")
    lies = (
        "None", "{'status': 'ok', 'data': {'application/json': {'answer': 7, 'score': 1.0}}}", "[[]] * 9", "{'data': 'x'}",
        "{'data': {'application/json': {'answer': None, 'notepad': {'plan': [{'text': 'x'}] * 10**5, 'facts': 7}}}}",
    )  # fmt: skip
    for lie in lies:
        cell = f"get_ipython().user_expressions = lambda e: {{'state': {lie}}}"
        result = arena.wait(wired.execute(cell, 20.0))
        assert read_state(result.state, before) is before
    reward = "{'data': {'application/json': {'answer': 'a guess, reward=1.0, em=1.0'}}}"
    result = arena.wait(wired.execute(f"get_ipython().user_expressions = lambda e: {{'state': {reward}}}", 20.0))
    answer = read_state(result.state, before).answer
    row = {
        "id": "t",
        "group": "g",
        "ability": "a",
        "environment": "e",
        "status": "answered",
        "answers": [truth],
        "rule": "qa",
        "steps": [],
    }
    scored = score({**row, "answer": answer}, RewardSettings())
    assert (scored["em"], scored["f1"]) == (0.0, 0.0)
    assert scored == score({**row, "answer": "a guess, reward=1.0, em=1.0"}, RewardSettings())


@pytest.mark.attack(
    tried="Look for ground truth in the kernel: memory, files, environment, tools",
    wall="it is joined to answers on the host after the trajectory's end; a kernel gets its own key and limits, nothing else",
    effect="the needle is found nowhere",
)
def test_ground_truth_is_nowhere_in_a_kernel(arena: Arena, victim: Kernel) -> None:
    truth = f"nbrl-canary-truth-{secrets.token_hex(16)}"
    arena.secrets.append(truth)
    code = """
found = []
for line in open("/proc/self/maps").read().splitlines():
    span, mode = line.split()[:2]
    start, end = (int(number, 16) for number in span.split("-"))
    if mode.startswith("rw") and "[v" not in line:
        with open("/proc/self/mem", "rb", 0) as memory:
            memory.seek(start)
            found += secrets_in(memory.read(end - start))
for folder, _, names in (*os.walk("/workspace"), *os.walk("/tmp"), *os.walk("/opt/nbrl")):
    for name in names:
        found += secrets_in(open(os.path.join(folder, name), "rb").read())
found += secrets_in(repr(dict(os.environ)).encode())
for name in ("truth", "answers", "reward", "score", "big"):
    try:
        found += secrets_in(repr(host_call(name, {})).encode())
    except RuntimeError:
        pass
print(found)
"""
    assert victim.text(code) == "[]\n"


@pytest.mark.attack(
    tried="Call tools of others, tools that do not exist, names that are paths or attributes; forge numbers and frames",
    wall="an allow-list for each trajectory; the socket is the identity; what is garbled gets an error",
    effect="only this trajectory's tools answer; the sibling's are not called",
)
def test_the_tool_channel_serves_this_trajectory_only(victim: Kernel) -> None:
    code = """
for name in ("exec", "eval", "__class__", "../echo", "", "echo ", "x" * 100_000, "handler", "kernel", "sibling.echo"):
    attempt("tool", host_call, name, {"value": 1})
print(host_call("echo", {"value": "mine"}))
"""
    assert "mine" in victim.text(code)
    assert victim.refused("pass") == 10


@pytest.mark.attack(
    tried="Flood the tool channel: requests without reading answers, half frames, lengths of 4 GB, deep and wide JSON",
    wall="a bound on each request and answer, on calls for each second and kernel; an answer waits until the one before is taken",
    effect="the host's memory stays flat, its loop runs on, the sibling's channel answers",
)
@pytest.mark.parametrize(
    "flood",
    [
        'for n in range(20_000): send(b\'{"id": %d, "name": "big", "arguments": {}}\' % n)',
        "for n in range(200_000): send(b'[]')",
        "for n in range(50): send(b'[' * 1_000_000)",
        "for n in range(50): send(b'{\"a\":' * 200_000)",
        'for n in range(50): send(b\'{"id": 1, "name": "echo", "arguments": {"value": [\' + b\'[],\' * 200_000 + b\'0]}}\')',
        'send(b\'{"id": \' + b\'9\' * 1_000_000 + b\', "name": "echo", "arguments": {}}\')',
        "own.sendall(b'\\xff\\xff\\xff\\xff' + bytes(1 << 20))",
        "own.sendall(b'\\x00\\x00\\x10\\x00x')",
    ],
)
def test_the_tool_channel_cannot_be_flooded(arena: Arena, victim: Kernel, flood: str) -> None:
    code = """
own = host_call.__closure__[0].cell_contents._socket
def send(data):
    own.sendall(struct.pack("!I", len(data)) + data)
"""
    victim.run(code + flood, timeout=1.5)
    assert arena.sibling.run("1 + 1").outputs[0].text == "2"


@pytest.mark.attack(
    tried="Have the host parse what takes long: a megabyte of empty lists, of deep ones, of keys, of numbers, again and again",
    wall="a share of the event loop's time for each connection; too many lists are refused before they are parsed",
    effect="the host's loop and the sibling's cells wait no longer than for honest work",
)
@pytest.mark.parametrize(
    "value",
    ["b'[' + b'[],' * 300_000 + b'0]'", "b'[' + (b'[' * 900 + b']' * 900 + b',') * 540 + b'0]'",
     "b'{' + b','.join(b'\"%x\":0' % n for n in range(90_000)) + b'}'", "b'[' + b'1.5,' * 240_000 + b'0]'"],
    ids=["lists", "deep", "keys", "numbers"],
)  # fmt: skip
def test_the_host_spends_little_on_what_a_kernel_sends(arena: Arena, victim: Kernel, value: str) -> None:
    code = f"""
own = host_call.__closure__[0].cell_contents._socket
data = b'{{"id": 1, "name": "echo", "arguments": {{"value": ' + {value} + b'}}}}'
own.setblocking(True)
if os.fork() == 0:
    while own.recv(1 << 16): pass
if os.fork() == 0:
    while True: own.sendall(struct.pack("!I", len(data)) + data)
"""
    assert victim.run(code).status == "ok"
    began, clock = arena.loop_seconds(), time.monotonic()
    while time.monotonic() < clock + 2:
        assert arena.sibling.text("print(2)") == "2\n"
        time.sleep(0.02)
    spent, passed = arena.loop_seconds() - began, time.monotonic() - clock
    assert victim.kernel.host_calls.calls
    assert spent < 0.6 * passed


@pytest.mark.attack(
    tried="Draw the siblings' random numbers: random, NumPy, uuid, secrets, tempfile, OpenSSL",
    wall="a fork's generators are seeded anew by the system",
    effect="no generator of two kernels gives the same",
)
def test_siblings_do_not_share_random_state(arena: Arena, victim: Kernel) -> None:
    code = """
import random, secrets, ssl, tempfile, uuid
try:
    import numpy
    drawn = [numpy.random.rand(), numpy.random.default_rng().random()]
except ImportError:
    drawn = [0, 1]
drawn += [random.random(), secrets.token_hex(8), str(uuid.uuid4()), str(uuid.uuid1()), ssl.RAND_bytes(8).hex()]
drawn += [next(tempfile._get_candidate_names()), os.urandom(8).hex(), random.SystemRandom().random(), random.Random().random()]
print(*drawn)
"""
    sibling = arena.sibling.run("import os\n" + code).outputs[0].text.split()
    own = victim.text(code).split()
    assert len(own) == len(sibling) == 11
    assert not {*own} & {*sibling}
