"""Opens the corpus that search looks in: a small one is indexed in memory, a large one once per host, on disk.

Invariants: an index has its name only when it is whole and flushed to disk; what differs from its manifest is made again; of
several processes that want the same index, one makes it and the others wait.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from nbrl.agent.tools.corpus import index
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.infra.errors import DamagedError, InfraError, MissingError
from nbrl.infra.home import Home
from nbrl.infra.manifest import check_whole, write_manifest
from nbrl.infra.process.child import Child

CORPORA = "corpora"
"""Folder below the home. What is in it may be deleted when no run is under way."""
IN_MEMORY = 20_000
"""Passages from which on the index is kept on disk: fewer are indexed in 2 s and 100 MB."""
BUILD_KB = 4
"""Memory that indexing takes for a passage of 80 words."""


def open_corpus(home: Home, digest: str, read: Callable[[], pa.ChunkedArray], say: Callable[[str], None]) -> Corpus:
    """Return the corpus whose passages have `digest`; `read` gets them, an array of strings, where no index of them is on this
    host.

    `say` is called when one is made. Raises InfraError when that fails, and what `read` raises.
    """
    folder = home.root / CORPORA / f"{digest}-{index.FORMAT}"
    if not _is_whole(folder):
        passages = read()
        if len(passages) < IN_MEMORY:
            return Corpus.in_memory(passages.to_pylist())
        with home.lock(f"corpus-{folder.name}"):
            if not _is_whole(folder):
                _make(passages, folder, home, say)
    return index.open_corpus(folder)


def _is_whole(folder: Path) -> bool:
    try:
        check_whole(folder)
    except (MissingError, DamagedError):
        return False
    return True


def _make(passages: pa.ChunkedArray, folder: Path, home: Home, say: Callable[[str], None]) -> None:
    """Index the passages in a process of its own, whose memory is given back. The lock of the folder is held."""
    memory = f"about {len(passages) * BUILD_KB / 1e6:.1f} GB of memory"
    say(f"indexing {len(passages):,} passages for search, once on this machine; it takes {memory} for a while")
    unfinished = f".{folder.name}-"
    for left in folder.parent.glob(f"{unfinished}*"):  # of processes that were killed
        shutil.rmtree(left, ignore_errors=True)
    temporary = folder.parent / f"{unfinished}{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        index.write_passages(passages, temporary)
        _run(temporary, home.logs / "corpus-index.log", memory)
        write_manifest(temporary)
        shutil.rmtree(folder, ignore_errors=True)  # what was damaged
        temporary.rename(folder)
    except OSError as error:
        raise InfraError(f"the corpus cannot be indexed in {folder.parent}: {error}; make room, or set another home") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.iterdir())
    say(f"indexed {len(passages):,} passages: {size / 1e9:.2f} GB in {folder}")


def _run(folder: Path, log: Path, memory: str) -> None:
    command = [sys.executable, "-m", index.__name__, str(folder)]
    child = Child.start(command, env=os.environ, log=log, name="the index of the corpus")
    try:
        status = child.wait()
    finally:
        child.stop()
    if status != 0:
        reason = (child.log_tail(1) or [child.ending])[0] if 0 < status < 128 else f"{child.ending}; does it lack {memory}?"
        raise InfraError(f"the corpus could not be indexed: {reason}; the log is {log}")
