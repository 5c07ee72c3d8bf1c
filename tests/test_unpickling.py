"""Nothing of a storage is unpickled: what metadata describe is looked at, and weights are read as weights alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("agent", "flows", "infra", "sandbox", "tasks")
STATE = "tasks/learner/checkpoint/sharded_state.py"  # asks a reader of nbrl's own for metadata
MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
SUSPECT = re.compile("|".join([*MODULES, "torch.load", "Unpickler", "read_metadata"]))
HIDDEN = re.compile(f"from ({'|'.join(MODULES)}) import|from torch import .*\\bload\\b")


def unpickles(tree: ast.AST) -> Iterator[str]:
    """What is used that unpickles, or may."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            module, _, name = text.rpartition(".")
            if name == "read_metadata" or (module in MODULES and name in ("load", "loads", "open", "Unpickler")):
                yield text
        elif isinstance(node, ast.Call):
            said = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            loads = ast.unparse(node.func) == "torch.load" and said.get("weights_only") != "True"
            if loads or said.get("allow_pickle") == "True":
                yield ast.unparse(node)


@pytest.mark.attack(
    tried="Another place that unpickles, by a change of nbrl",
    wall="a test over all files",
    effect="the test fails",
)
def test_nothing_unpickles() -> None:
    texts = {path: path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert len(texts) > 300
    suspect = {path: text for path, text in texts.items() if SUSPECT.search(text)}
    found = {str(path.relative_to(ROOT)) for path, text in suspect.items() if any(unpickles(ast.parse(text)))}
    assert found == {STATE}
    assert not [path for path, text in suspect.items() if HIDDEN.search(text)]
