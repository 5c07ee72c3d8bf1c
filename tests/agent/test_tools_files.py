"""Files of the workspace: hostile bytes become text or a clear error, and models are asked about them."""

import asyncio
import base64
import io
import re
import zipfile
from collections.abc import Callable

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl.worksheet.formula import ArrayFormula
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from nbrl.agent.http.json_service import ChatModel, ServiceError
from nbrl.agent.tools.files.charsets import UNNAMED, decoded, markup
from nbrl.agent.tools.files.documents import DocumentError, Documents, kind_of
from nbrl.agent.tools.files.files import IMAGE_BYTES, ReadFile, file_text, inspect_file, visual_qa
from nbrl.agent.tools.functions import FunctionTool
from tests.agent.tool_server import Said, Server, serving

pytestmark = pytest.mark.process

DOCX = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
PNG = b"\x89PNG\r\n\x1a\n" + b"rest"
ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "A cat."}}],
}


def docx(*paragraphs: str, entities: str = "") -> bytes:
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", f'{entities}<w:document xmlns:w="{DOCX}"><w:body>{body}</w:body></w:document>')
    return file.getvalue()


def xlsx(rows: list[list[object]]) -> bytes:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def saved(book: openpyxl.Workbook, dimension: bytes | None = None) -> bytes:
    """The file of a workbook, with another word about the size of its sheets if one is given."""
    made, changed = io.BytesIO(), io.BytesIO()
    book.save(made)
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(
                entry, re.sub(rb'<dimension ref="[^"]*"', b'<dimension ref="%s"' % dimension, data) if dimension else data
            )
    return changed.getvalue()


@pytest.mark.parametrize("dimension", [b"A1", b"A1:A2", b"C7:D9"])
def test_a_sheet_is_read_whole_whatever_it_says_of_its_size(dimension: bytes) -> None:
    book = openpyxl.Workbook()
    for row in (["city", "people"], ["Orla", 12], [None, 9]):
        book.active.append(row)
    assert text_of("a.xlsx", saved(book, dimension)) == "## Sheet\ncity\tpeople\nOrla\t12\n\t9"


def test_a_formula_that_was_never_computed_is_shown_and_a_sheet_of_charts_is_not() -> None:
    book = openpyxl.Workbook()
    book.active.append([2, "=A1*3"])
    book.active["A2"] = ArrayFormula("A2:A3", "=SUM(A1:A1)")
    book.create_chartsheet("chart")
    assert text_of("a.xlsx", saved(book)) == "## Sheet\n2\t=A1*3\n=SUM(A1:A1)"


def test_rows_before_a_last_value_far_below_are_counted_and_a_cut_is_told() -> None:
    book = openpyxl.Workbook()
    book.active["A1"], book.active["A3"], book.active["A2000"] = "x", "y", "z"
    assert text_of("a.xlsx", saved(book)) == "## Sheet\nx\n\ny\n[1996 empty rows]\nz"
    assert "[cut here:" in text_of("a.docx", docx("x", *[""] * 2000, "z"), max_chars=1000)


WORDS = {
    "utf-16": "Stadt\tPreis\nKöln\t3\n",
    "utf-32": "Stadt\tPreis\nKöln\t3\n",
    "utf-16-be": "Stadt\tPreis\nKöln\t3\n",
    "utf-32-be": "Stadt\tPreis\nKöln\t3\n",
    "utf-32-le": "Stadt\t価格\n",
    "utf-16-le": "\ufeff中文\n",
    "cp1252": "Stadt;Preis\nKöln;3 €\n“Zürich”;5\n",
    "cp1250": "Łódź;3\nŻółw;4\n",
    "cp1254": "İstanbul;3\nşehir;5\n",
    "cp1251": "имя;цена\nМосква;3\n",
    "cp932": "価格,商品ABC\n1,テスト\n名前,東京\n",
    "gb18030": "姓名,价格\n北京,3\n上海,5\n",
}


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_text_of_wide_signs_needs_no_mark(charset: str, mark: str) -> None:
    assert text_of("a.csv", f"{mark}Straße,3\n".encode(charset)) == "Straße,3\n"


@pytest.mark.parametrize("charset", WORDS)
def test_a_text_is_read_in_the_charset_it_is_in(charset: str) -> None:
    assert text_of("a.csv", WORDS[charset].encode(charset)) == WORDS[charset].removeprefix("\ufeff")


POLISH = "Łódź leży nad rzeką. Są tu łąki, źródła i jaźń; żółw śpi."


@pytest.mark.parametrize(
    ("meta", "charset", "named"),
    [
        ("", "iso-8859-2", "iso-8859-2"),
        ('<meta charset="iso-8859-2">', "iso-8859-2", UNNAMED),
        ('<META http-equiv=Content-Type content="text/html; charset=windows-1250">', "cp1250", UNNAMED),
        ('<?xml version="1.0" encoding="iso-8859-2"?>', "iso-8859-2", UNNAMED),
        ('<meta charset="iso-8859-1">', "utf-8", "UTF8"),
        ('<meta charset="iso-8859-1">', "utf-8-sig", UNNAMED),
        ('<meta charset="utf-16">', "utf-8", UNNAMED),
        ('<meta charset="no-such">', "cp1250", UNNAMED),
        ("", "cp1250", UNNAMED),
    ],
)
def test_a_page_is_read_in_the_charset_that_its_header_its_mark_or_itself_names(meta: str, charset: str, named: str) -> None:
    page = f"{meta}<html><head><title>T</title></head><body><article><p>{POLISH}</p></article></body></html>"
    assert POLISH in markup(page.encode(charset), named)


def test_a_page_whose_charset_is_known_is_parsed_in_it() -> None:
    page = f'<html><head><meta charset="iso-8859-2"></head><body><article><p>{POLISH}</p></article></body></html>'
    assert POLISH in text_of("a.html", page.encode("iso-8859-2"))


@given(st.binary(max_size=300), st.sampled_from([UNNAMED, "utf-16", "idna", "punycode", "rot13", "iso-8859-1", "x" * 50, ""]))
def test_any_bytes_are_some_text(data: bytes, charset: str) -> None:
    assert isinstance(decoded(data, charset), str)
    assert isinstance(markup(b'<meta charset="' + data, charset), str)


def pdf(text: str) -> bytes:
    writer = PdfWriter()
    page = writer.add_blank_page(300, 100)
    font = DictionaryObject({NameObject(f"/{key}"): NameObject(f"/{value}") for key, value in
                             {"Type": "Font", "Subtype": "Type1", "BaseFont": "Helvetica"}.items()})  # fmt: skip
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    stream = DecodedStreamObject()
    stream.set_data(f"BT /F1 12 Tf 10 50 Td ({text}) Tj ET".encode())
    page[NameObject("/Contents")] = writer._add_object(stream)
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def text_of(path: str, data: bytes, max_chars: int = 1_000, timeout_s: float = 20.0) -> str:
    async def read(asked: str) -> bytes:
        assert asked == path
        return data

    answer: str = asyncio.run(file_text(read, Documents(max_chars, timeout_s)).call({"path": path}))
    return answer


@pytest.mark.parametrize(
    ("path", "data", "expected"),
    [
        ("a.txt", "\ufeffzwölf".encode(), "zwölf"),
        ("a.csv", b"a,b\n1,2\n", "a,b\n1,2\n"),
        ("a.JSON", b'{"a": 1}', '{"a": 1}'),
        ("a.log", b"\xff\xfe odd", "\ufffd\ufffd odd"),
        ("a.html", b"<html><title>T</title><body><p>Some text of a page.</p></body></html>", "# T\n\nSome text of a page."),
        ("sub/a.docx", docx("First", "Second &amp; last"), "First\nSecond & last"),
        ("a.xlsx", xlsx([["a", 1, None, 2.5], [None, True]]), "## Sheet\na\t1\t\t2.5\n\tTrue"),
        ("a.pdf", pdf("Found me"), "Found me"),
    ],
)
def test_supported_kinds_become_text(path: str, data: bytes, expected: str) -> None:
    assert text_of(path, data) == expected


@pytest.mark.parametrize("path", ["a", "a.exe", "a.doc", "", "pdf", "a.pdf/b", "a.\x00"])
def test_other_kinds_say_what_is_supported(path: str) -> None:
    with pytest.raises(DocumentError, match="html, pdf, docx, xlsx, txt"):
        kind_of(path)


def bomb() -> bytes:
    return docx("x" * 300_000_000)


def laughs() -> bytes:
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    return docx("&l11;", entities=f'<!DOCTYPE w:document [<!ENTITY l0 "ha">{levels}]>')


@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("a.pdf", lambda: b"%PDF-1.7\n" + b"\x00\xff" * 1000),
        ("a.pdf", lambda: b""),
        ("a.docx", lambda: b"PK\x03\x04" + b"z" * 100),
        ("a.docx", lambda: docx("<w:unclosed>")),
        ("a.xlsx", lambda: docx("no sheet")),
        ("a.docx", laughs),
        ("a.html", lambda: b""),
    ],
)
def test_hostile_bytes_are_a_clear_error(path: str, make: Callable[[], bytes]) -> None:
    with pytest.raises(DocumentError, match=f"it is no {path[2:]} that can be read") as caught:
        text_of(path, make())
    assert len(str(caught.value)) < 400


@pytest.mark.more
def test_a_file_that_unpacks_to_much_more_ends_its_reader_only() -> None:
    try:
        text = text_of("a.docx", bomb())
    except DocumentError as error:
        text = str(error)
    assert len(text) < 1_100


def test_deep_html_is_read_or_refused() -> None:
    try:
        text = text_of("a.html", b"<div>" * 100_000 + b"deep down")
    except DocumentError as error:
        text = str(error)
    assert len(text) < 1_100


def test_a_reader_that_takes_too_long_is_ended() -> None:
    with pytest.raises(DocumentError, match=r"the xlsx took longer than 0\.05 s"):
        text_of("a.xlsx", xlsx([[1] * 10] * 10), timeout_s=0.05)


def test_a_long_text_is_cut() -> None:
    assert text_of("a.docx", docx("x" * 5_000)) == "x" * 1_000 + "\n[cut here: 1000 characters]"


def ask(server: Server, make: Callable[[ChatModel], FunctionTool], **arguments: str) -> str:
    async def work() -> str:
        model = ChatModel(f"{server.url}/v1", "some-model", "MODEL_KEY", 64, 10.0)
        try:
            answer: str = await make(model).call(arguments)
            return answer
        finally:
            await model.service.close()

    return asyncio.run(work())


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "model-secret")


def reads(data: bytes) -> ReadFile:
    async def read(path: str) -> bytes:
        return data

    return read


def test_a_model_looks_at_an_image() -> None:
    with serving(Said(ANSWER)) as server:
        said = ask(server, lambda model: visual_qa(reads(PNG), model), image_path="cat.png", question="What is it?")
    assert said == "A cat."
    asked = server.asked[0]
    assert (asked.path, asked.headers["authorization"]) == ("/v1/chat/completions", "Bearer model-secret")
    assert (asked.body["model"], asked.body["max_tokens"]) == ("some-model", 64)
    words, image = asked.body["messages"][0]["content"]
    assert words == {"type": "text", "text": "What is it?"}
    assert image["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    ("data", "reason"), [(b"%PDF", "no PNG, JPEG"), (b"", "no PNG"), (PNG + bytes(IMAGE_BYTES), "are allowed; make it smaller")]
)
def test_what_is_no_image_is_not_sent(data: bytes, reason: str) -> None:
    with serving(Said(ANSWER)) as server, pytest.raises(DocumentError, match=reason):
        ask(server, lambda model: visual_qa(reads(data), model), image_path="a", question="?")
    assert server.asked == []


def test_a_model_is_asked_about_the_text_of_a_file_and_only_with_a_question() -> None:
    documents = Documents(1_000, 20.0)
    with serving(Said(ANSWER)) as server:
        make: Callable[[ChatModel], FunctionTool] = lambda model: inspect_file(reads(b"a,b"), documents, model)  # noqa: E731
        assert ask(server, make, path="t.csv") == "a,b"
        assert server.asked == []
        assert ask(server, make, path="t.csv", question="Which columns?") == "A cat."
    content = server.asked[0].body["messages"][0]["content"]
    assert content == "Which columns?\n\nThe file 't.csv' holds:\n\na,b"


@pytest.mark.parametrize(
    "body", [{}, {"choices": []}, {"choices": [{"message": {"content": None}}]}, {"error": {"message": "x"}}]
)
def test_an_answer_of_another_shape_is_an_error(body: object) -> None:
    with serving(Said(body)) as server, pytest.raises(ServiceError, match="without a message"):
        ask(server, lambda model: visual_qa(reads(PNG), model), image_path="a.png", question="?")
