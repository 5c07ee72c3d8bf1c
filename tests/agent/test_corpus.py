"""A corpus finds on disk what bm25s finds in memory: the same passages in the same order, ties included."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import bm25s
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.corpus import index
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.tools.corpus.index import Words, words_table

# Few words, so that many passages score the same; some in other scripts, of one letter, or of none.
WORD = st.sampled_from(["tilo", "Tilo", "born", "in", "keldra", "a", "!!", "été", "Größe", "東京", "𝔘𝔫𝔦", "x1", "\u2028"])
TEXT = st.lists(WORD, max_size=8).map(" ".join)


def on_disk(passages: Sequence[str], folder: Path) -> Corpus:
    index.write_passages(pa.chunked_array([pa.array(passages, pa.string())]), folder)
    index.index_passages(folder)
    return index.open_corpus(folder)


def by_bm25s(passages: list[str], queries: list[str], k: int) -> list[list[str]]:
    """What bm25s itself finds, used in the plainest way."""
    ranker = bm25s.BM25()
    ranker.index(bm25s.tokenize(passages, stopwords=None, show_progress=False), show_progress=False)
    answers = []
    for query in queries:
        tokens = bm25s.tokenize([query], stopwords=None, show_progress=False, return_ids=False)
        if not tokens[0]:
            answers.append([])
            continue
        found, scores = ranker.retrieve(tokens, k=min(k, len(passages)), show_progress=False)
        answers.append([passages[n] for n, score in zip(found[0], scores[0], strict=True) if score > 0])
    return answers


@given(st.lists(TEXT, max_size=40), st.lists(TEXT | st.text(max_size=12), min_size=1, max_size=5), st.integers(1, 50))
def test_a_corpus_on_disk_and_one_in_memory_find_what_bm25s_finds(passages: list[str], queries: list[str], k: int) -> None:
    passages.append("Tilo was born in Keldra")
    wanted = by_bm25s(passages, queries, k)
    assert [Corpus.in_memory(passages).retrieve(query, k) for query in queries] == wanted
    with tempfile.TemporaryDirectory() as folder:
        corpus = on_disk(passages, Path(folder))
        assert len(corpus) == len(passages)
        assert [corpus.retrieve(query, k) for query in queries] == wanted


def test_thousands_of_equal_scores_keep_their_order(tmp_path: Path) -> None:
    passages = [f"passage {number % 7} about Keldra" for number in range(5_000)]
    queries = ["keldra", "passage 3 keldra", "about about"]
    corpus = on_disk(passages, tmp_path)
    assert [corpus.retrieve(query, 50) for query in queries] == by_bm25s(passages, queries, 50)


@pytest.mark.parametrize("passages", [[], ["", "!! ?"], ["a b"]])
def test_a_corpus_without_words_finds_nothing_and_is_no_tool(passages: list[str], tmp_path: Path) -> None:
    for corpus in (Corpus.in_memory(passages), on_disk(passages, tmp_path)):
        assert corpus.retrieve("a b", 3) == []
        with pytest.raises(ToolError, match="has no words"):
            SearchTool(corpus)


@given(st.dictionaries(st.text(), st.integers(0, 2**40), max_size=30), st.text())
def test_words_are_a_dictionary(columns: dict[str, int], other: str) -> None:
    words = Words(words_table(columns))
    assert dict(words) == columns
    assert (other in words) == (other in columns)


@pytest.mark.process
def test_the_index_is_made_by_a_process_of_its_own(tmp_path: Path) -> None:
    index.write_passages(pa.chunked_array([["Tilo was born", "in Keldra"], ["Keldra lies on the Vorn"]]), tmp_path)
    subprocess.run([sys.executable, "-m", index.__name__, str(tmp_path)], check=True)
    assert index.open_corpus(tmp_path).retrieve("the Vorn", 5) == ["Keldra lies on the Vorn"]
