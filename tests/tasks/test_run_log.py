"""The lines that are kept with a run."""

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs import logs
from nbrl.tasks.runs.logs import Reader, RunLog

LAYOUT, EPOCH = RunLayout("r"), "e0001-abcdef"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    storage.write_json(LAYOUT.epoch(EPOCH), {"name": EPOCH})
    return storage


def texts(reader: Reader) -> list[str]:
    return [line.partition(" ")[2] for line in reader.lines()]


def test_a_follower_gets_each_line_once_and_in_order(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PART", 200)
    log, reader, found = RunLog(storage, LAYOUT, EPOCH), Reader(storage, LAYOUT), list[str]()
    for number in range(40):
        log.write(f"line {number}")
        if number % 3 == 0:
            log.flush()
        if number % 7 == 0:
            found += texts(reader)
    log.flush()
    found += texts(reader)
    assert found == [f"line {number}" for number in range(40)]
    assert len(storage.list(LAYOUT.logs)) > 5


def test_a_follower_gets_the_last_lines_of_a_start_that_is_taken_over(storage: Storage) -> None:
    later = "e0002-abcdef"
    storage.write_json(LAYOUT.epoch(later), {"name": later})
    first, second, reader = RunLog(storage, LAYOUT, EPOCH), RunLog(storage, LAYOUT, later), Reader(storage, LAYOUT)
    found = list[str]()
    for log, line in ((first, "begins"), (second, "the next begins"), (first, "ended: taken over"), (second, "goes on")):
        log.write(line)
        log.flush()
        found += texts(reader)
    assert found == ["begins", "the next begins", "ended: taken over", "goes on"]


def test_what_is_kept_is_bounded_and_holds_the_beginning_and_the_end(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PART", 100)
    log = RunLog(storage, LAYOUT, EPOCH)
    for number in range(1000):
        log.write(f"line {number}")
        log.flush()
    parts = storage.list(LAYOUT.logs)
    assert len(parts) <= logs.PARTS + 1
    assert sum(len(storage.read_bytes(key)) for key in parts) <= 100 * (logs.PARTS + 1)
    kept = texts(Reader(storage, LAYOUT))
    assert (kept[0], kept[-1]) == ("line 0", "line 999")


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1), max_size=20))
def test_any_text_comes_back(lines: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(StorageSettings(root=folder))
        storage.write_json(LAYOUT.epoch(EPOCH), {"name": EPOCH})
        log = RunLog(storage, LAYOUT, EPOCH)
        for line in lines:
            log.write(line)
        log.flush()
        assert texts(Reader(storage, LAYOUT)) == lines


def test_lines_of_many_threads_are_all_kept(storage: Storage) -> None:
    log = RunLog(storage, LAYOUT, EPOCH)

    def work(name: int) -> None:
        for number in range(50):
            log.write(f"{name} {number}")
            log.flush()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(texts(Reader(storage, LAYOUT))) == sorted(f"{name} {number}" for name in range(4) for number in range(50))


def test_nothing_is_written_for_a_run_that_was_deleted(storage: Storage) -> None:
    log = RunLog(storage, LAYOUT, EPOCH)
    storage.delete(LAYOUT.folder)
    log.write("late")
    log.flush()
    assert storage.list(LAYOUT.folder) == []


def test_ends_of_the_logs_of_services_are_kept(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "TAIL", 10)
    home = tmp_path / "home-logs"
    home.mkdir()
    (home / "engine-0.log").write_text("a long beginning, and the end")
    log = RunLog(storage, LAYOUT, EPOCH)
    log.keep_tails(home, "engine-*.log", 0.0)
    assert storage.read_bytes(f"{LAYOUT.log(EPOCH)}/engine-0.log") == b"nd the end"
    storage.delete(LAYOUT.logs)
    log.keep_tails(home, "engine-*.log", 1e12)  # of an earlier start
    assert storage.list(LAYOUT.logs) == []


@pytest.mark.attack(
    tried="A log of a run that is a sparse file of a terabyte",
    wall="of a log no more is read than any of ours has",
    effect="one sentence, after the lines before it",
)
def test_a_log_of_any_size_is_not_read_whole(storage: Storage, tmp_path: Path) -> None:
    log, reader = RunLog(storage, LAYOUT, EPOCH), Reader(storage, LAYOUT)
    log.write("begins")
    log.flush()
    with open(tmp_path / logs.part(LAYOUT, EPOCH, 1), "wb") as file:
        file.truncate(1 << 40)
    lines = reader.lines()
    assert next(lines).endswith("begins")
    with pytest.raises(DamagedError, match=r"lines-000001\.log has more than 64 MB, which no log has; take it away"):
        next(lines)
