"""Names of classes say which one is meant wherever one reads them."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("agent", "flows", "infra", "sandbox", "tasks")
PUBLIC = ROOT / "tasks/own.py"  # what users import has the names that they would look for


def test_no_two_classes_have_one_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != PUBLIC:
                body = ast.parse(path.read_text(encoding="utf-8")).body
                names = [node.name for node in body if isinstance(node, ast.ClassDef)]
                for name in names:
                    places[name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
