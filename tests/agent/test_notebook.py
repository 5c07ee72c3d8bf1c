"""Notebooks are valid whatever a model and its cells wrote, and opening them runs and fetches nothing."""

import base64
import json
import struct
import zlib
from typing import Any

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from nbrl.agent.notebook.write import TEXT_CHARS, literal, notebook, written
from nbrl.agent.trajectory import Output, Status, Step, ToolCall, Trajectory

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> ![p](http://a.example/x.png) [l](javascript:alert(1)) [r]\n\n"
    "[r]: http://a.example\n<https://a.example> https://a.example/a_b www.a.example m@a.b `code` $x$ \\(y\\) &lt; | ~~s~~\n"
    "===\n    four\n```\nfence\n\x00\x1b[31m\ud800\r\nend"
)
TEXTS = st.text(max_size=300) | st.just(HOSTILE) | st.text(alphabet="<>[]()!`$\\&;:/_*~| \n\tab\x00\ud800=-#", max_size=200)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    pixels = zlib.compress((b"\0" + b"\x80" * width) * height)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def trajectory(*steps: Step, text: str = "q", answer: str | None = "a", **fields: Any) -> Trajectory:
    known = {"id": "q-0", "group": "q", "sample": 0, "ability": "qa", "status": Status.ANSWERED, "nodes": []}
    return Trajectory(**(known | {"question": text, "answer": answer, "steps": list(steps)} | fields))


def read(made: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook as a reader finds it in its file, valid."""
    found = nbformat.reads(written(made).decode(), 4)
    nbformat.validate(found)
    json.loads(written(made), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return found


@given(st.text("ab\r\n\x00\x0c\x1b\u2028", max_size=20))
def test_a_cell_is_saved_as_the_program_it_is(code: str) -> None:
    made = read(notebook(trajectory(Step(code=code, cell_status="ok"))))
    assert made.cells[2].source == code


def test_carriage_returns_are_line_ends_in_what_is_read_and_no_other_mark() -> None:
    step = Step(think="one\rtwo\r\n", code="print('a\r')", cell_status="ok", outputs=[Output(kind="stream", text="a\r\nb\rc")])
    assert "\ufffd" not in json.dumps(read(notebook(trajectory(step, text="q\r"))), ensure_ascii=False)


@pytest.mark.parametrize(
    ("image", "kinds"),
    [
        (b"\xff\xd8\xff\xe0", {"image/jpeg"}),
        (b"GIF89a", {"image/gif"}),
        (b"RIFF\0\0\0\0WEBPVP8 ", {"image/webp"}),
        (b"<svg onload='alert(1)'/>", set[str]()),
        (b"\0", set[str]()),
    ],
)
@pytest.mark.attack(
    tried="A picture of a cell that is a program for a browser",
    wall="its kind is read from its first bytes",
    effect="left out of the notebook",
)
def test_a_picture_is_saved_as_what_it_is_and_nothing_else_as_one(image: bytes, kinds: set[str]) -> None:
    step = Step(code="x", cell_status="ok", outputs=[Output(kind="display", text="words", image=image)])
    (display,) = read(notebook(trajectory(step))).cells[2].outputs
    assert {*display.data} - {"text/plain"} == kinds


def test_steps_become_cells_with_their_outputs_and_metadata() -> None:
    call = ToolCall(name="search", arguments='{"query": "x"}', result='"y"', ok=True, seconds=0.1)
    outputs = [
        Output(kind="stream", text="seen\n"),
        Output(kind="display", text="<Figure>", image=png(64, 48)),
        Output(kind="result", text="3"),
    ]
    first = Step(think="look", code="print(1)", cell_status="ok", outputs=outputs, notepad='{"facts": ["f"]}', tool_calls=[call])
    second = Step(think="no tags", malformed="there is no <think> block")
    third = Step(think="oops", code="1 / 0", cell_status="error", outputs=[Output(kind="error", text="ZeroDivisionError: by: 0")])
    rewards = {"trajectory": "q-0", "total": 0.5, "em": 1.0, "step_rewards": [0.1, 0.0, 0.4]}
    made = read(notebook(trajectory(first, second, third), rewards))
    assert [cell.cell_type for cell in made.cells] == ["markdown", "markdown", "code", "markdown", "markdown", "code", "markdown"]
    stream, display, result = made.cells[2].outputs
    assert (stream.text, result.data["text/plain"], result.execution_count) == ("seen\n", "3", 1)
    assert base64.b64decode(display.data["image/png"]) == png(64, 48)
    assert made.cells[2].metadata.nbrl.tool_calls == [call.model_dump()]
    assert made.cells[2].metadata.nbrl.unrecorded_calls == 0
    assert made.cells[2].metadata.nbrl.notepad == {"facts": ["f"]}
    assert [made.cells[i].metadata.nbrl.reward for i in (2, 3, 5)] == [0.1, 0.0, 0.4]
    assert "there is no &#60;think&#62; block" in made.cells[3].source
    (error,) = made.cells[5].outputs
    assert (error.ename, error.evalue, made.cells[5].execution_count) == ("ZeroDivisionError", "by: 0", 2)
    assert made.metadata.kernelspec.name == "python3"
    assert (made.metadata.nbrl.status, made.metadata.nbrl.rewards) == ("answered", {"total": 0.5, "em": 1.0})


def test_a_summary_is_markdown_and_no_cell_that_ran() -> None:
    summary = Step(kind="summary", think="sum up", observation="found <b>")
    empty = Step(kind="summary", malformed="the summary is empty")
    made = read(notebook(trajectory(summary, empty, Step(think="t", code="c", cell_status="ok"))))
    assert [cell.cell_type for cell in made.cells] == ["markdown"] * 4 + ["code", "markdown"]
    assert "found &#60;b&#62;" in made.cells[1].source
    assert "the summary is empty" in made.cells[2].source
    assert made.cells[4].execution_count == 1


@pytest.mark.parametrize(("status", "words"), [("timeout", "too long"), ("dead", "died"), ("none", "did not end")])
def test_how_a_cell_ended_is_told(status: Any, words: str) -> None:
    made = read(notebook(trajectory(Step(think="t", code="x", cell_status=status))))
    assert words in made.cells[2].outputs[-1].text


@given(TEXTS, st.floats())
@settings(deadline=None)
def test_any_text_makes_a_valid_notebook(text: str, reward: float) -> None:
    outputs = [Output(kind=kind, text=text) for kind in ("stream", "result", "error", "display")]  # type: ignore[arg-type]
    notes = json.dumps({"facts": [text], text: reward if reward == reward else None})
    call = ToolCall(name=text, arguments=text, result=text, ok=False, seconds=1.0)
    steps = [
        Step(think=text, code=text, cell_status="ok", outputs=outputs, notepad=notes, tool_calls=[call]),
        Step(think=text, malformed=text or "x"),
    ]
    rewards = {"total": reward, "step_rewards": [reward, reward]}
    made = read(notebook(trajectory(*steps, text=text, answer=text, failure=text), rewards))
    kinds = {kind for cell in made.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert kinds <= {"text/plain"}


@given(TEXTS)
@settings(deadline=None)
def test_what_a_model_wrote_is_shown_and_never_rendered(text: str) -> None:
    markdown = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable(["table", "strikethrough"])
    tokens = [inner for token in markdown.parse(f"### Step\n\n{literal(text)}") for inner in (token, *(token.children or ()))]
    assert not {"image", "link_open", "html_block", "code_inline", "fence", "code_block", "table_open"} & {t.type for t in tokens}
    assert {token.content for token in tokens if token.type == "html_inline"} <= {"<span>", "</span>"}
    assert sum(token.type == "heading_open" for token in tokens) == 1


def test_every_character_of_a_thought_can_be_read() -> None:
    rendered = MarkdownIt("commonmark", {"html": True}).parse(literal("a_b <c> `d` $e$ \\f *g* [h](i) 1 & 2 &amp; x@y https://z"))
    shown = "".join(token.content for token in rendered[1].children or () if token.type in ("text", "text_special"))
    assert shown == "a_b <c> `d` $e$ \\f *g* [h](i) 1 & 2 &amp; x@y https://z"


def test_mathematics_has_no_delimiter_beside_its_text() -> None:
    assert "$" not in literal("$x$")
    assert literal("$x$") == "<span>&#36;</span>x<span>&#36;</span>"


def test_a_huge_text_is_cut_in_its_middle() -> None:
    step = Step(think="t" * 10**7, code="c", cell_status="ok", outputs=[Output(kind="stream", text="o" * 10**7)])
    made = written(notebook(trajectory(step)))
    assert len(made) < 4 * TEXT_CHARS


def test_the_same_trajectory_is_the_same_file() -> None:
    made = trajectory(Step(think="t", code="c", cell_status="ok"))
    assert written(notebook(made)) == written(notebook(made))
