"""Data sets of programming: the answer is the source of a function, judged by the data set's own tests."""

import ast

from nbrl.tasks.environments.datasets.published import PublishedQuestion, Row
from nbrl.tasks.reward.rules.code.reference import complaint, reference_of

SUBMIT = "Submit its complete source as text, imports and helper functions included: submit_final_answer(source)."
ABILITY = "code"


def human_eval(row: Row) -> PublishedQuestion | None:
    """Read a row of HumanEval (arXiv 2107.03374): its prompt gives imports and helpers. None if its tests cannot be used."""
    prompt, name = row["prompt"], row["entry_point"]
    if not _parse(prompt, row["test"]):
        return None
    setup = [node for node in ast.parse(prompt).body if not (isinstance(node, ast.FunctionDef) and node.name == name)]
    reference = reference_of(checks(row["test"], name), ast.unparse(ast.Module(setup, [])), [name])
    question = f"Complete the function {name}. {SUBMIT}\n\n```python\n{prompt.strip()}\n```"
    return _asked(row["task_id"].replace("/", "-"), question, reference)


def mbpp(row: Row) -> PublishedQuestion | None:
    """Read a row of MBPP (arXiv 2108.07732), both configurations. The first test is part of the question, as it alone names the
    function.

    None if its tests cannot be used, as where they make instances of classes that the answer would have to define.
    """
    sanitized = "prompt" in row
    task, setup = (row["prompt"], "\n".join(row["test_imports"])) if sanitized else (row["text"], row["test_setup_code"])
    tests = [test for test in row["test_list"] if test.strip()]
    if not tests or not _parse(row["code"], *tests):
        return None
    used = {node.id for test in tests for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)}
    defined = [node.name for node in ast.parse(row["code"]).body if isinstance(node, ast.FunctionDef) and node.name in used]
    question = f"{task.strip()}\n\nThis test must pass, and others like it:\n\n```python\n{tests[0].strip()}\n```\n\n{SUBMIT}"
    return _asked(f"mbpp-{row['task_id']}", question, reference_of(tests, setup, dict.fromkeys(defined)))


def checks(source: str, name: str) -> list[str]:
    """Return the function `check(candidate)` of HumanEval as tests of the function `name`.

    Its assertions are tests of their own where it has nothing else; those that do not call the candidate are left out.
    """
    tree = ast.parse(source)
    (check,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check")
    candidate = check.args.args[0].arg
    others = [node for node in tree.body if node is not check and not isinstance(node, ast.Assign)]
    statements = [node for node in check.body if not _says_nothing(node)]
    if others or not all(isinstance(node, ast.Assert) for node in statements):
        return [f"{source.strip()}\n\ncheck({name})"]
    calling = [node for node in statements if any(isinstance(each, ast.Name) and each.id == candidate for each in ast.walk(node))]
    return [ast.unparse(_Renamed(candidate, name).visit(node)) for node in calling]


def _parse(*sources: str) -> bool:
    try:
        return all(ast.parse(source) for source in sources)
    except (SyntaxError, ValueError):
        return False


def _says_nothing(node: ast.stmt) -> bool:
    """Return whether it is a docstring, or the assertion of a constant."""
    return isinstance(node, ast.Assert | ast.Expr) and isinstance(
        node.test if isinstance(node, ast.Assert) else node.value, ast.Constant
    )


class _Renamed(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._new, node.ctx) if node.id == self._old else node


def _asked(name: str, question: str, reference: str) -> PublishedQuestion | None:
    return None if complaint(reference) else PublishedQuestion(name, question, [], ABILITY, reference)
