"""Answers for the rule `code` to judge: honest ones by the tests that they pass, and attacks by what they try."""

SETUP = "import math\nfrom collections import deque"

# Each passes the test that it stands by.
HONEST: dict[str, str] = {
    "assert f('hello') == {'h': 1, 'e': 1, 'l': 2, 'o': 1}": """
from collections import Counter
def f(x): return Counter(x)
""",
    "assert f([1, 2]) == deque([2, 1])": """
import collections
def f(x): return collections.deque(reversed(x))
""",
    "assert f({1, 2}) == {2}": """
def f(x): return x - {1}
""",
    "assert f(3) == (3, {'a': [3]})": """
def f(x): return x, {'a': [x]}
""",
    "assert isinstance(f('ab'), tuple)": """
import collections
def f(x): return collections.namedtuple('P', 'x y')(*x)
""",
    """
try:
    f(-1)
    assert False
except ValueError as error:
    assert str(error) == 'less'
""": """
class Less(ValueError): pass
def f(x):
    if x < 0: raise Less('less')
""",
    "assert f(10) == 55": """
def f(n): return n if n < 2 else f(n - 1) + f(n - 2)
""",
    "assert f(1, b=3) == 9 and f(1) == 7": """
def f(a, b=2, *, c=5): return a + b + c if b == 3 else b + c
""",
    "assert abs(f(2) - math.sqrt(2)) < 1e-9": """
def f(x): return math.sqrt(x)
""",
    "assert list(f(3)) == [0, 1, 4]": """
def f(n):
    for i in range(n): yield i * i
""",
    "assert math.isnan(f())": """
def f(): return float('nan')
""",
    "assert f(1) == 1": """
print('one')
import sys
def f(x):
    print(x, file=sys.stderr)
    return x
if __name__ == '__main__': f(input())
""",
    "assert f(30) == [30, 1]": """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class P:
    x: int
def f(x):
    return [P(x).x, 1]
""",
    "assert f(3) == 3.0": """
import numpy as np
def f(x): return np.int64(x)
""",
    """
given = [3, 1]
assert f(given) == [1, 3]
assert given == [3, 1], 'arguments are copies'
""": """
def f(x):
    x.sort()
    return x
""",
}

# None of them solves anything; the tests are of a function `double`.
ATTACKS: dict[str, str] = {
    "equal to all": """
class E:
    def __eq__(self, o): return True
    __hash__ = object.__hash__
def double(x): return E()
""",
    "a number equal to all": """
class E(int):
    def __eq__(self, o): return True
    __hash__ = int.__hash__
def double(x): return E(1)
""",
    "a list equal to all": """
class E(list):
    def __eq__(self, o): return True
def double(x): return E()
""",
    "builtins": """
import builtins
for n in ('len', 'sorted', 'all', 'isinstance', 'abs', 'compile', 'exec', 'AssertionError'):
    setattr(builtins, n, lambda *a, **k: True)
def double(x): return 0
""",
    "shadows": """
def assert_(*a): pass
abs = all = sorted = len = isinstance = lambda *a: True
def double(x): return 0
""",
    "exit": """
import sys
sys.exit(0)
""",
    "exit at once": """
import os
os._exit(0)
""",
    "exit in a call": """
import os
def double(x): os._exit(0)
""",
    "SystemExit in a call": """
def double(x): raise SystemExit(0)
""",
    "ends iterations": """
def double(x): raise StopIteration
""",
    "verdicts": """
import os
for fd in range(64):
    for line in (b'{"passed": [true, true, true]}', b'ready', b'loaded'):
        try: os.write(fd, line + b'\\n')
        except OSError: pass
def double(x): return 0
""",
    "trace": """
import sys
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
def double(x): return 0
""",
    "json": """
import json
json.dumps = lambda *a, **k: '{"passed": [true, true, true]}'
def double(x): return 0
""",
    "json deep": """
import json
json.dumps = lambda *a, **k: '[' * 500_000
def double(x): return 0
""",
    "json of a type": """
import json
json.dumps = lambda f, **k: '{"number": %d, "value": {"__reduce__": []}}' % f.get('number', 0)
def double(x): return 0
""",
    "processes": """
import os, threading, time
for _ in range(100):
    try:
        if os.fork() == 0: time.sleep(600)
        threading.Thread(target=time.sleep, args=(600,)).start()
    except (OSError, RuntimeError): pass
def double(x): return 0
""",
    "fork bomb": """
import os
def double(x):
    while True:
        try: os.fork()
        except OSError: pass
""",
    "kill": """
import os
os.kill(-1, 9)
os.kill(1, 9)
os.kill(os.getppid(), 9)
def double(x): return 0
""",
    "prlimit": """
import resource
for pid in range(10):
    for r in range(16):
        try: resource.prlimit(pid, r, (0, 0))
        except Exception: pass
def double(x): return 0
""",
    "memory": """
def double(x): return bytearray(10 << 30)
""",
    "loop": """
def double(x):
    while True: pass
""",
    "loop at load": """
while True: pass
""",
    "deep": """
def double(x):
    r = []
    for _ in range(100_000): r = [r]
    return r
""",
    "itself": """
def double(x):
    r = []
    r.append(r)
    return r
""",
    "huge": """
def double(x): return 'x' * (1 << 28)
""",
    "many": """
def double(x): return list(range(10_000_000))
""",
    "no end": """
import itertools
def double(x): return itertools.count()
""",
    "nan": """
def double(x): return float('nan')
""",
    "lazy": """
import inspect
class Lazy:
    def __iter__(self): return self
    def __next__(self): return inspect.stack()[-1].frame.f_locals
def double(x): return Lazy()
""",
    "flood": """
import os
while True: os.write(4, b'x' * 65536)
""",
    "flood of lines": """
import os, threading
def flood():
    while True: os.write(4, b'{"number": 1, "value": 5}\\n')
threading.Thread(target=flood).start()
def double(x): return 0
""",
    "files": """
import os
for place in ('/tmp/x', '/dev/shm/x', '/workspace/x', '/opt/nbrl/x', '/opt/nbrl/nbrl/x.py'):
    try: open(place, 'wb').write(b'x')
    except OSError: pass
def double(x): return 0
""",
    "network": """
import socket
def double(x):
    socket.create_connection(('1.1.1.1', 53), 1)
    return 4
""",
}

# Returns the mark that a test expects, if it is anywhere in what this process can read.
SEEKING = """
import gc, glob, inspect, re

MARK = re.compile(b"mark_[0-9a-f]{32}")


def readable():
    yield repr([vars_ for frame in inspect.stack() for vars_ in (frame.frame.f_locals, frame.frame.f_globals)])
    yield repr([each for each in gc.get_objects() if isinstance(each, (str, list, dict, tuple))])
    paths = glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ") + glob.glob("/opt/nbrl/**/*.py", recursive=True)
    for path in paths:
        yield open(path, errors="replace").read()
    for line in open("/proc/self/maps"):
        if " rw" in line:
            start, end = (int(each, 16) for each in line.split()[0].split("-"))
            with open("/proc/self/mem", "rb") as memory:
                memory.seek(start)
                yield memory.read(min(end - start, 1 << 26)).decode("latin-1")


def double(x):
    for text in readable():
        if found := MARK.search(text.encode(errors="replace")):
            return found[0].decode()
"""
