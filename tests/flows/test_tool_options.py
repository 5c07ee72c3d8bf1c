"""What a command's options make of tools and passages."""

import json
from pathlib import Path

from nbrl.flows.ask.tools import ToolOptions

PASSAGES = ["one\u2028line", "next\x85line", "page\x0cline"]


def test_a_passage_may_hold_other_ends_of_lines_than_a_newline(tmp_path: Path) -> None:
    rows = tmp_path / "corpus.jsonl"
    rows.write_text("\r\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in PASSAGES[:2]), encoding="utf-8-sig")
    assert ToolOptions(corpus=rows).passages() == PASSAGES[:2]
    lines = tmp_path / "corpus.txt"
    lines.write_text("\n\n".join(PASSAGES) + "\n", encoding="utf-8")
    assert ToolOptions(corpus=lines).passages() == PASSAGES
