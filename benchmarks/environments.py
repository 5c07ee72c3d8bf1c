"""What environments cost: search over a corpus; with `--part scorers`, how many answers a second each scorer judges (scorers.py).

Search is measured over the index on disk, which runner processes share, and beside it one in each process's memory.

Passages of 60 to 100 words are drawn by Zipf's law from an invented vocabulary, always the same for a seed. The index on disk is
made once of all of them, and once of the tenth that the index in memory is made of. Then fresh processes take turns: one opens
the large index on disk, one the small one, one reads and indexes the tenth in memory. `first_hit_s` is the time from the call
that opens or indexes to the first answer, imports not counted; the files are in the page cache. RSS and PSS are a process's own,
after all queries; `together` are processes that have the large index open at once, and `shared_pss_mb` is one's share.
Anonymous memory is what is no page of a file: the system cannot take it back. `cpu_s` is processor time, which other work on the
machine changes less than the time on the clock.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.rollout import corpora
from nbrl.tasks.rollout.corpora import open_corpus

VOCABULARY, TOP_K = 300_000, 3
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
MB = 1e6


def passages(count: int, seed: int = 0) -> Iterator[str]:
    """The frequency of a word is inversely proportional to its rank."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 5, size=VOCABULARY)
    words = np.array(["".join(random.choice(SYLLABLES, size=n)) for n in lengths], dtype=object)
    edges = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    for start in range(0, count, 10_000):
        sizes = random.integers(60, 101, size=min(10_000, count - start))
        drawn = words[np.searchsorted(edges, random.random(sizes.sum()) * edges[-1])]
        for part in np.split(drawn, np.cumsum(sizes)[:-1]):
            yield " ".join(part)


def queries(count: int) -> list[str]:
    """Some words of passages that are in every corpus."""
    random = np.random.default_rng(1)
    found = [text.split() for text in passages(50)]
    return [" ".join(random.choice(found[n % len(found)], size=random.integers(3, 8))) for n in range(count)]


def work(way: str, folder: Path, name: str, asked: int) -> None:
    """A process that opens a corpus and searches it; it then says what memory it has whenever it gets a line."""
    texts = queries(asked)

    def read() -> pa.ChunkedArray:
        if way == "disk":
            raise RuntimeError("the index was to be on disk")
        return _storage(folder).read_table(name)["passage"]

    import bm25s  # noqa: F401  what both ways import is no part of their time

    began, cpu = time.perf_counter(), time.process_time()
    corpus = Corpus.in_memory(read().to_pylist()) if way == "memory" else open_corpus(Home(folder), name, read, print)
    found = corpus.retrieve(texts[0], TOP_K)
    first, later_ms = {"first_hit_s": time.perf_counter() - began, "first_hit_cpu_s": time.process_time() - cpu}, []
    for text in texts[1:]:
        began = time.perf_counter()
        found += corpus.retrieve(text, TOP_K)
        later_ms.append(1000 * (time.perf_counter() - began))
    if len(found) != TOP_K * asked:
        raise RuntimeError(f"{asked} queries found {len(found)} passages")
    print(json.dumps({**first, "query_ms": statistics.median(later_ms)}), flush=True)
    for _ in sys.stdin:
        lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
        sizes = {line[0]: int(line[1]) * 1024 / MB for line in lines}
        print(json.dumps({"rss_mb": sizes["Rss:"], "pss_mb": sizes["Pss:"], "anonymous_mb": sizes["Anonymous:"]}), flush=True)


def workers(count: int, way: str, folder: Path, name: str, asked: int) -> dict[str, float]:
    """Return the medians of processes that work at once."""
    command = [sys.executable, __file__, "--work", way, str(folder), name, "--queries", str(asked)]
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) for _ in range(count)
        ]
        found = [json.loads(_line(process)) for process in started]
        for process, figures in zip(started, found, strict=True):
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            figures |= json.loads(_line(process))
    return {key: statistics.median(figures[key] for figures in found) for key in found[0]}


def _line(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise RuntimeError(f"a process ended with exit status {process.wait()}")


def _storage(folder: Path) -> Storage:
    return Storage(StorageSettings(root=str(folder / "storage")))


def make(folder: Path, name: str, count: int) -> dict[str, float]:
    """Return a corpus on storage, and its index."""
    storage, texts = _storage(folder), pa.array(passages(count), pa.string())
    storage.write_table(name, pa.table({"passage": texts}))
    corpora.IN_MEMORY = 0
    began, before = time.perf_counter(), _cpu_s()
    open_corpus(Home(folder), name, lambda: storage.read_table(name)["passage"], lambda said: print(said, file=sys.stderr))
    seconds, cpu = time.perf_counter() - began, _cpu_s() - before
    size = sum(path.stat().st_size for path in (folder / "corpora").glob(f"{name}-*/*"))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    sizes = {"index_mb": size / MB, "text_mb": texts.nbytes / MB, "index_peak_mb": peak / MB}
    return {"index_s": seconds, "index_cpu_s": cpu, **sizes}


def _cpu_s() -> float:
    """Processor time of this process and of those that it started and that ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def search(count: int, rounds: int, together: int, asked: int) -> dict[str, Any]:
    tenth = max(count // 10, 100)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        small, large = make(folder, "small", tenth), make(folder, "large", count)
        ways = {"disk": ("disk", "large"), "disk_tenth": ("disk", "small"), "memory_tenth": ("memory", "small")}
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, (way, corpus) in ways.items():
                taken[name].append(workers(1, way, folder, corpus, asked))
        shared = workers(together, "disk", folder, "large", asked)
    medians = {
        f"{name}_{key}": statistics.median(each[key] for each in figures) for name, figures in taken.items() for key in figures[0]
    }
    return {
        "part": "search",
        "passages": count,
        **{key: _short(value) for key, value in large.items()},
        "tenth_passages": tenth,
        "tenth_index_s": _short(small["index_s"]),
        "tenth_index_cpu_s": _short(small["index_cpu_s"]),
        **{key: _short(value) for key, value in medians.items()},
        "together": together,
        "shared_pss_mb": _short(shared["pss_mb"]),
        "rounds": rounds,
        "queries": asked,
    }


def _short(value: float) -> float:
    return float(f"{value:.3g}") if value < 1000 else round(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="search", choices=("search", "scorers"))
    parser.add_argument("--answers", type=int, default=128, help="that a scorer judges at once")
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--together", type=int, default=4, help="processes that have the large index open at once")
    parser.add_argument("--queries", type=int, default=200, help="of each process")
    parser.add_argument("--work", nargs=3, metavar=("WAY", "FOLDER", "NAME"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        way, folder, name = given.work
        work(way, Path(folder), name, given.queries)
        return
    from hardware import processor  # brings torch, which a process that is measured does without

    if given.part == "scorers":
        import scorers

        found = dict(scorers.measure(given.answers))
    else:
        found = search(given.passages, given.rounds, given.together, given.queries)
    print(json.dumps({**found, "machine": processor(), "load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
