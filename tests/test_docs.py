import importlib.util
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["settings", "hostile"])
def test_a_written_page_is_what_its_writer_says(name: str) -> None:
    writer = Path("docs", f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"{name}_page", writer)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert writer.with_suffix(".md").read_text(encoding="utf-8") == module.page(), f"run: python {writer}"
