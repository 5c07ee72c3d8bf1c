"""Runs ALONE, as a program: turns one document on standard input into text on standard output.

Usage: python -I convert.py KIND MAX_CHARS

The document is hostile. This process has no environment, little memory and little time, and may write no file; a parser that is
led astray ends with it. What goes wrong is one line on standard error. It imports nothing of this package.
"""

import io
import resource
import sys
import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree

MEMORY = 1 << 30
CPU_S = 30
WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


def html(data: bytes) -> Iterator[str]:
    """Return the main content as Markdown, under the page's title, or all text without one. The page is UTF-8."""
    import trafilatura

    page = data.decode()
    tree = trafilatura.load_html(page)
    if tree is None:
        raise ValueError("it holds no HTML")
    title = " ".join((tree.findtext(".//title") or "").split())
    content = trafilatura.extract(tree, output_format="markdown", include_links=True, include_tables=True, favor_recall=True)
    content = content or trafilatura.html2txt(page)
    if title and title not in content[:500]:
        yield f"# {title}\n\n"
    yield content


def pdf(data: bytes) -> Iterator[str]:
    """Return the text of the pages, a blank line between them."""
    import logging

    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    for page in pypdf.PdfReader(io.BytesIO(data)).pages:
        yield page.extract_text() + "\n\n"


def docx(data: bytes) -> Iterator[str]:
    """Return the paragraphs of the body; the cells of a table row are paragraphs too."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("word/document.xml") as document:
        for _, element in ElementTree.iterparse(document):
            if element.tag == f"{WORD}p":
                yield "".join(_runs(element)) + "\n"
                element.clear()


def _runs(paragraph: ElementTree.Element) -> Iterator[str]:
    marks = {f"{WORD}tab": "\t", f"{WORD}br": "\n", f"{WORD}cr": "\n"}
    for part in paragraph.iter():
        yield (part.text or "") if part.tag == f"{WORD}t" else marks.get(part.tag, "")


def xlsx(data: bytes) -> Iterator[str]:
    """Return each sheet's name, then its rows with tabs between the values; a formula that was never computed replaces its value.

    Empty rows that follow each other are counted: a sheet may have a million of them before its last value.
    """
    import openpyxl
    from openpyxl.reader.excel import ExcelReader

    # Charts have no text, and an empty sheet of them cannot be read.
    ExcelReader.read_chartsheet = lambda *_: None
    workbooks = [openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=values) for values in (True, False)]
    for sheet, formulas in zip(*(book.worksheets for book in workbooks), strict=True):
        yield f"## {sheet.title}\n"
        for each in (sheet, formulas):
            each.reset_dimensions()  # programs other than Excel write wrong ones, by which rows would be cut
        empty = 0
        for row, written in zip(sheet.iter_rows(values_only=True), formulas.iter_rows(values_only=True), strict=True):
            cells = (formula if value is None else value for value, formula in zip(row, written, strict=True))
            # The formula of several cells is an object with a text.
            line = "\t".join("" if cell is None else str(getattr(cell, "text", cell)) for cell in cells).rstrip()
            if not line:
                empty += 1
                continue
            yield "\n" * empty if empty < 2 else f"[{empty} empty rows]\n"
            yield line + "\n"
            empty = 0
        yield "\n"


KINDS = {"html": html, "pdf": pdf, "docx": docx, "xlsx": xlsx}


def confine() -> None:
    limits = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CPU: CPU_S, resource.RLIMIT_FSIZE: 0}
    for what, limit in limits.items():
        resource.setrlimit(what, (limit, limit))


def main(kind: str, max_chars: int) -> None:
    confine()
    data = sys.stdin.buffer.read()
    written = 0
    for part in KINDS[kind](data):
        part = part[: max_chars - written]
        written += len(part)
        sys.stdout.buffer.write(part.encode("utf-8", "replace"))
        if written >= max_chars:
            break
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except BaseException as error:
        said = " ".join(str(error).split())[:150]
        sys.exit(f"{type(error).__name__}{': ' if said else ''}{said}")
