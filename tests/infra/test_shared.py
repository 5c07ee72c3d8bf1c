"""A child shared by several processes lives as long as its last user, and no longer."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home
from nbrl.infra.process.child import Child, free_port
from nbrl.infra.process.shared import Shared

from .test_processes import until

pytestmark = pytest.mark.process

USER = """
import sys, time
from nbrl.infra.home import Home
from tests.infra.test_shared import join
share = join(Home(sys.argv[1]))
print(share.url, share.owned, flush=True)
for line in sys.stdin:
    share.leave()
    print("left", flush=True)
time.sleep(1000)
"""


def healthy(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def join(home: Home) -> Shared:
    def start(pipe: int) -> tuple[Child, str]:
        port = free_port()
        line = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
        child = Child.start(line, env=dict(os.environ), log=home.logs / "log", name="page", pipe=pipe, cwd=home.root)
        assert until(lambda: healthy(f"http://127.0.0.1:{port}"))
        return child, f"http://127.0.0.1:{port}"

    return Shared.join(home, "page", start, healthy)


class User:
    def __init__(self, home: Home) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(home.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url, owned = self.read().split()
        self.owned = owned == "True"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.read() == "left\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def users(home: Home) -> Iterator[list[User]]:
    users = [User(home) for _ in range(3)]
    yield users
    for user in users:
        user.kill()


@pytest.mark.more
def test_started_once_joined_twice_ended_by_the_last(users: list[User], home: Home) -> None:
    assert [user.owned for user in users] == [True, False, False]
    assert len({user.url for user in users}) == 1
    users[0].leave()
    assert healthy(users[0].url)
    users[1].kill()
    assert healthy(users[0].url)
    users[2].leave()
    assert not healthy(users[0].url)
    assert list((home.root / "page").iterdir()) == []


def test_all_users_killed(users: list[User], processes: Callable[[str], list[int]]) -> None:
    port = users[0].url.rpartition(":")[2]
    assert len(processes(f"127.0.0.1\0{port}")) == 2
    for user in users:
        user.kill()
    assert until(lambda: processes(f"127.0.0.1\0{port}") == [])


@pytest.mark.more
def test_a_new_one_is_started_after_all_were_killed(users: list[User], home: Home) -> None:
    for user in users:
        user.kill()
    assert until(lambda: not healthy(users[0].url))  # before its keeper has noticed, it would be joined
    share = join(home)
    assert share.owned
    assert healthy(share.url)
    share.leave()
    share.leave()
    assert not healthy(share.url)


def test_a_killed_child_is_started_again_once_for_all_its_users(home: Home, processes: Callable[[str], list[int]]) -> None:
    first, second = join(home), join(home)
    port = first.url.rpartition(":")[2]
    starts: list[int] = []

    def start(pipe: int) -> tuple[Child, str]:
        starts.append(pipe)
        line = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", port]
        child = Child.start(line, env=dict(os.environ), log=home.logs / "log", name="page", pipe=pipe, cwd=home.root)
        assert until(lambda: healthy(first.url))
        return child, first.url

    for pid in processes("http.server"):
        if "keeper.py" not in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    assert until(lambda: not (first.running or second.running))
    for share in (first, second):
        share.renew(start, healthy)
    assert (len(starts), first.running, second.running, healthy(first.url)) == (1, True, True, True)
    first.leave()
    assert healthy(second.url)
    second.leave()
    assert not healthy(first.url)


def test_failed_start_leaves_nothing(home: Home, processes: Callable[[str], list[int]]) -> None:
    def fail(pipe: int) -> tuple[Child, str]:
        Child.start(["sleep", "1000"], env=os.environ | {"MARK": str(home.root)}, log=home.logs / "log", name="page", pipe=pipe)
        raise ServerError("it did not come up")

    with pytest.raises(ServerError, match="did not come up"):
        Shared.join(home, "page", fail, healthy)
    assert until(lambda: processes(f"MARK={home.root}") == [])
    share = join(home)
    assert share.owned
    share.leave()


def test_locks_are_let_go_by_death(home: Home) -> None:
    code = (
        "import sys, time\nfrom nbrl.infra.home import Home\n"
        "with Home(sys.argv[1]).lock('x'):\n print('locked', flush=True)\n time.sleep(1000)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(home.root)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"locked\n"
    holder.kill()
    with home.lock("x"):
        pass
    holder.wait()


def test_home_makes_its_folders(tmp_path: Path) -> None:
    home = Home(tmp_path / "deep" / "home")
    assert all(path.is_dir() for path in (home.prefect, home.mlflow, home.logs, home.locks))
