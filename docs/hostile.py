"""Writes docs/hostile.md from the tests that are attacks, so that each line of the page is kept by a test. It runs none of them.

Usage: python docs/hostile.py
"""

import ast
from pathlib import Path

PAGE = Path(__file__).with_name("hostile.md")
TESTS = Path(__file__).parent.parent / "tests"
CELLS = TESTS / "hostile"
HEAD = """# Hostile cells

What cells try, what stops them, and what comes of it. Each row is a test of `tests/hostile`, run against both ways to start a
kernel (`zygote`, `bubblewrap`), as root and as an ordinary user. What files, runs, models and pages of others try is in the
[last table](#files-runs-models-and-pages-of-others); what is promised about them is in [security.md](security.md).
Written by `docs/hostile.py` from those tests.

## Threat model

A model writes the cells; we assume that it wants out, or wants reward that it did not earn. It may run any code that an
unprivileged process can, for as long as its trajectory lasts. It must not reach:

- the host: its files, processes, environment, network, devices, settings, its memory beyond the kernel's limits;
- its siblings and the zygote: their memory, files, keys, life;
- what earns reward: ground truth, scores, other trajectories, keys of services.

A test does not ask whether an exception came up inside. After each cell, whatever it was, the same is examined from outside: a
sibling kernel still has the secrets in its memory, environment and files, and no process connected to it; the zygote is the same
process, with the same limits and priority; canaries on the host (a writable file, an environment variable, a process of the
kernels' own user, listeners on TCP, UDP, abstract and named sockets) are untouched; no output ever held one of their secrets;
no process, file, socket or mount of the victim is left after its end; this process's memory and descriptors stayed within
bounds; a new kernel is clean.

## What cannot be prevented

- **A cell speaks for its own kernel.** They are one process, so a cell can send `idle`, outputs, an `execute_reply`, a state
  that the agent's prelude never made. The host takes such messages for what they are: text that was observed, an answer that
  could have been submitted. Ground truth and scoring are not in any kernel, so the lie earns what its text earns.
- **Time and load.** Kernels share processors and caches. A cell can slow its siblings within its share, and measure them: side
  channels by timing, the page cache and advisory locks (`flock`) on shared read-only files remain. Do not run what must not
  learn of each other on one machine. A control group gives each kernel an equal share of the processors: what one session of the
  host has, where the controllers have hierarchies of their own (version 1); where they have not (version 2), what one group of
  the host has is shared by all kernels of a zygote. Without one, as for an ordinary user, every session that a kernel makes
  (`setsid`) has a share: with 48 that spin, births take 20 to 30 times as long on two processors.
- **Some names.** `/proc/self/mountinfo` shows from which paths of the host Python was mounted; `/proc/self/cgroup` the name of
  the kernel's control group, a number that other kernels of its zygote have had; `/proc` the machine's processors, memory,
  system version and `boot_id`: two kernels can see that they run on one machine, from one zygote. No content comes with them.
- **Memory as a whole, without control groups.** Rlimits bind a process: a kernel may then take `memory_mb` times
  `max_processes`, and shared memory that no rlimit counts. With control groups the kernel as a whole is bounded;
  `sandbox.require` can demand them. In any case kernels are the first to go when the machine runs out of memory.
- **Memory of networks, without the system call filter.** Buffers of TCP, UDP and netlink belong to no control group of version 1
  and are bounded for the machine as a whole: where there is no filter that refuses such sockets, a kernel can fill them.
  [Programs](programs.md) have TCP: with the zygote a buffer of theirs has at most 128 KB, and a process `sandbox.max_open_files`
  of them.
- **Counts that only the zygote's kernels have:** inodes of their tmpfs and terminals. A kernel of the `bubblewrap` provisioner
  can use up the machine's terminals but for the host's own reserve, while it lives; where no control group bounds it, its empty
  files may take an eighth of the machine's memory and more in each of its three tmpfs, the system's own bound.
- **Counts of one user.** All kernels of a host have one user there. Descriptors under way in unix sockets and watches of epoll
  are counted for it as a whole: a kernel that holds many keeps its siblings from passing descriptors on or, where memory is small
  and no control group bounds it, from watching more. For a host that is not root, that user is its own, as are its processes
  (`ulimit -u`): let it have more than `max_live` times `max_processes`.
- **Holes in the system's kernel.** All of this leans on it. For more, put the machine that hosts sandboxes in a virtual
  machine.
"""


OTHERS = """
## Files, runs, models and pages of others

| tried | what stops it | effect | test |
|---|---|---|---|"""
MARK = "pytest.mark.attack"


def _marks(test: ast.FunctionDef) -> list[ast.Call]:
    calls = [decorator for decorator in test.decorator_list if isinstance(decorator, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) == MARK]


def _tests(path: Path) -> list[ast.FunctionDef]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def _row(test: ast.FunctionDef) -> str:
    """The row of one test; a KeyError or ValueError says that its mark is missing or incomplete."""
    (mark,) = _marks(test)
    said = {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}
    cells = (said["tried"], said["wall"], said["effect"], f"`{test.name.removeprefix('test_')}`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    lines = [HEAD]
    for path in sorted(CELLS.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        title, _, text = (ast.get_docstring(tree) or "").partition("\n")
        lines.append(f"\n## {title}\n")
        lines += [text.strip() + "\n"] if text.strip() else []
        lines.append("| tried | what stops it | effect | test |\n|---|---|---|---|")
        lines += [_row(test) for test in _tests(path)]
    lines.append(OTHERS)
    others = [
        path for path in sorted(TESTS.rglob("test_*.py")) if path.parent != CELLS and MARK in path.read_text(encoding="utf-8")
    ]
    lines += [_row(test) for path in others for test in _tests(path) if _marks(test)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
