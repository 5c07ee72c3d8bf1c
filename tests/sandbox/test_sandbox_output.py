"""Outputs within their bytes, whatever comes; messages that are checked, whatever comes."""

import json
import re
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.sandbox.jupyter.messages import MessageCodec
from nbrl.sandbox.jupyter.outputs import Outputs, plain, shorten

KINDS = st.sampled_from(["stream", "result", "error", "display"])
TEXTS = st.text(max_size=3000) | st.integers(0, 20000).map(lambda n: "é" * n)


@given(st.lists(st.tuples(KINDS, TEXTS, st.sampled_from(["stdout", "stderr"])), max_size=40), st.integers(1024, 4096))
def test_outputs_stay_within_their_bytes(pieces: list[tuple[str, str, str]], limit: int) -> None:
    outputs = Outputs(limit)
    for kind, text, name in pieces:
        outputs.add(kind, text, name=name)  # type: ignore[arg-type]
    done = outputs.finish()
    # A note of what was cut may stand above the limit, one for each output at most.
    assert sum(len(output.text.encode()) for output in done) <= limit + 64 * len(done)
    if sum(len(plain(text).encode()) for _, text, _ in pieces) <= limit:
        # Neighbours of one stream are one text: a line may be written in several pieces.
        runs = groupby(pieces, lambda piece: (piece[0], piece[2]) if piece[0] == "stream" else object())
        assert "".join(output.text for output in done) == "".join(plain("".join(text for _, text, _ in run)) for _, run in runs)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("\r1 of 2\r2 of 2\n", "2 of 2\n"),
        ("100 %\rdone \r", "done "),
        ("50 %\r", "50 %"),
        ("long line\rshort\n", "shortline\n"),
        ("long line\r\x1b[Kshort\n", "short\n"),
        ("long line\x1b[2K\rshort\n", "short\n"),
        ("a|\b/\b-\b\bB\n", "B-\n"),
        ("\x1b[32m5 %\x1b[0m\r\x1b[32m9 %\x1b[0m", "9 %"),
        ("\b\b\rx", "x"),
        ("look\x1b it", "look\ufffd it"),
    ],
)
def test_a_line_is_seen_as_a_terminal_shows_it(text: str, shown: str) -> None:
    assert plain(text) == shown
    outputs = Outputs(4096)
    for piece in re.findall(r"\x1b(?:\[\w+| )|.", text, re.DOTALL):
        outputs.add("stream", piece, name="stdout")
    assert [output.text for output in outputs.finish()] == [shown]


@given(st.lists(st.text("ab\r\b\n", max_size=4), max_size=20))
def test_a_stream_is_shown_the_same_in_whatever_pieces_it_comes(pieces: list[str]) -> None:
    outputs = Outputs(4096)
    for piece in pieces:
        outputs.add("stream", piece, name="stdout")
    assert "".join(output.text for output in outputs.finish()) == plain("".join(pieces))


@pytest.mark.timeout(60)
def test_a_flood_of_moves_is_read_in_the_end() -> None:
    for text, shown in (("ab" + "\b" * 5_000_000 + "c", "cb"), ("a" + "\r" * 5_000_000 + "c", "c")):
        assert plain(text) == shown


def test_overwritten_lines_without_end_stay_small() -> None:
    outputs = Outputs(4096)
    for number in range(3000):
        outputs.add("stream", f"\r{number} of 3000", name="stdout")
    assert [output.text for output in outputs.finish()] == ["2999 of 3000"]


def test_a_display_is_updated_in_its_place_or_shown_again() -> None:
    outputs = Outputs(4096, images=1, image_bytes=100)
    outputs.add("display", "0 of 3", display_id="a")
    outputs.add("stream", "x", name="stdout")
    outputs.update("a", "3 of 3")
    outputs.update("b", "again")
    outputs.update("b", "last", png="no picture")
    outputs.update("b", "last", png="no picture")
    texts = [output.text for output in outputs.finish()]
    assert texts[:2] == ["3 of 3", "x"]
    assert texts[2].startswith("last\n[image left out: it is no PNG")
    for number in range(300):
        outputs.update("a", "y" * 100 * number)
    assert sum(len(output.text) for output in outputs.finish()) < 5000


@given(TEXTS, st.integers(100, 2000))
def test_what_is_shortened_keeps_head_and_tail(text: str, limit: int) -> None:
    text = plain(text)
    short = shorten(text, limit)
    assert len(short.encode()) <= limit
    if len(text.encode()) <= limit:
        assert short == text
    else:
        assert "… cut …" in short
        assert short[:5] == text[:5]
        assert short[-5:] == text[-5:]


def test_many_outputs_do_not_grow_without_bound() -> None:
    outputs = Outputs(4096)
    outputs.add("display", "first")
    for number in range(100_000):
        outputs.add("display", f"{number}" * 10)
    outputs.add("display", "last")
    done = outputs.finish()
    assert len(done) < 1000
    assert (done[0].text, done[-1].text) == ("first", "last")
    assert any("outputs cut" in output.text for output in done)


def test_colours_nul_and_lone_surrogates_are_taken_out() -> None:
    assert plain("\x1b[31mred\x1b[0m \x00 \ud800 \x1b]0;title\x07end") == "red \ufffd \ufffd end"


def test_clear_output_forgets_now_or_at_the_next_output() -> None:
    outputs = Outputs(4096)
    outputs.add("stream", "a", name="stdout")
    outputs.clear(wait=True)
    assert [output.text for output in outputs.finish()] == ["a"]
    outputs.add("stream", "b", name="stdout")
    assert [output.text for output in outputs.finish()] == ["b"]
    outputs.clear(wait=False)
    assert outputs.finish() == []


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_garbled_messages_are_nothing(frames: list[bytes]) -> None:
    assert MessageCodec(b"key").parse(frames) is None


@given(st.recursive(st.none() | st.text() | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_signed_nonsense_is_nothing_or_a_message(value: object) -> None:
    codec = MessageCodec(b"key")
    parts = [json.dumps(value).encode()] * 4
    message = codec.parse([b"<IDS|MSG>", codec._sign(parts), *parts])
    assert (message is None) == (not isinstance(value, dict))


def test_a_request_carries_its_signature() -> None:
    codec = MessageCodec(b"key")
    identity, frames = codec.request("execute_request", {"code": "1"})
    message = codec.parse(frames)
    assert message is not None
    assert (message.kind, message.content) == ("execute_request", {"code": "1"})
    assert MessageCodec(b"other").parse(frames) is None
    assert identity in frames[2].decode()
