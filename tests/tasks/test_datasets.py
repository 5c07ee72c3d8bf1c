"""Published data sets become questions, from small rows with each one's real columns and quirks."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from nbrl.flows.cli.commands import app
from nbrl.tasks.environments.datasets.catalogue import CATALOGUE
from nbrl.tasks.environments.datasets.fetch import Fetched, convert, from_hub
from nbrl.tasks.environments.datasets.published import boxed
from nbrl.tasks.environments.files import read_questions
from nbrl.tasks.environments.questions import SCHEMA
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.rule import judge

CONTEXT = {
    "title": ["Arthur's Magazine", "First for Women"],
    "sentences": [["It is a periodical. ", " It began in 1844."], ["1989."]],
}
PASSAGES = ["Arthur's Magazine: It is a periodical. It began in 1844.", "First for Women: 1989."]
PARAGRAPHS = [
    {"idx": 0, "title": "Green", "paragraph_text": "Green is by Steve Hillage.", "is_supporting": True},
    {"idx": 1, "title": "Miquette Giraudy", "paragraph_text": "She plays.", "is_supporting": False},
]
ALIASES = {
    "aliases": ["(Harry) Sinclair Lewis", "Sinclair Lewis"],
    "normalized_aliases": ["harry sinclair lewis", "sinclair lewis"],
    "matched_wiki_entity_name": "",
    "normalized_matched_wiki_entity_name": "",
    "normalized_value": "sinclair lewis",
    "type": "WikipediaEntity",
    "value": "Sinclair Lewis",
}
SAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nq-open": (
        {"question": "where did they film hot tub time machine", "answer": ["Fernie Alpine Resort", "Fernie"]},
        {"question": "where did they film hot tub time machine?", "answers": ["Fernie Alpine Resort", "Fernie"]},
    ),
    "trivia-qa": (
        {"question": "Who won in 1930?", "question_id": "tc_1", "question_source": "http://x", "answer": ALIASES},
        {"id": "tc_1", "answers": ["Sinclair Lewis", "(Harry) Sinclair Lewis"]},
    ),
    "pop-qa": (
        {"id": 4222362, "subj": "George Rankin", "prop": "occupation", "question": "What is George Rankin's occupation?"}
        | {"obj": "politician", "possible_answers": '["politician", "political leader", "pol."]', "s_pop": 142},
        {"id": "popqa-4222362", "answers": ["politician", "political leader", "pol."]},
    ),
    "simple-qa": (
        {"metadata": "{'topic': 'Art', 'urls': []}", "problem": "Who received the award in 2010?", "answer": "Michio Sugeno"},
        {"question": "Who received the award in 2010?", "answers": ["Michio Sugeno"]},
    ),
    "bamboogle": (
        {"Question": "Who was president of the US when superconductivity was found?", "Answer": "Franklin D. Roosevelt"},
        {"answers": ["Franklin D. Roosevelt"], "ability": "two_hop"},
    ),
    "hotpot-qa": (
        {"id": "5a7a06935542990198eaf050", "question": "Which began first?", "answer": "Arthur's Magazine", "type": "comparison"}
        | {"level": "medium", "supporting_facts": {"title": ["Arthur's Magazine"], "sent_id": [0]}, "context": CONTEXT},
        {"id": "5a7a06935542990198eaf050", "answers": ["Arthur's Magazine"], "ability": "comparison"},
    ),
    "2wiki": (
        {"id": "8813f87c0bdd11eba7f7acde48001122", "question": "Who is the mother?", "answer": "Agnes", "type": "compositional"}
        | {"evidences": [["a", "b", "c"]], "context": CONTEXT},
        {"answers": ["Agnes"], "ability": "compositional"},
    ),
    "musique": (
        {"id": "2hop__482757_12019", "question": "Who is the spouse of the Green performer?", "answer": "Miquette Giraudy"}
        | {"answer_aliases": ["Giraudy"], "answerable": True, "paragraphs": PARAGRAPHS, "question_decomposition": []},
        {"id": "2hop-482757_12019", "answers": ["Miquette Giraudy", "Giraudy"], "ability": "2hop"},
    ),
    "gsm8k": (
        {"question": "How many clips?", "answer": "She sold 48/2 = <<48/2=24>>24 clips.\n#### 1,072"},
        {"answers": ["1,072"], "rule": "number"},
    ),
    "math": (
        {
            "problem": "Find $x$.",
            "level": "Level 5",
            "type": "Counting & Probability",
            "solution": r"So $x=\boxed{\frac{1}{2}}$.",
        },
        {"answers": [r"\frac{1}{2}"], "ability": "counting_probability", "rule": "math"},
    ),
    "math-500": (
        {"problem": "Convert.", "solution": "...", "answer": r"\left( 3, \frac{\pi}{2} \right)", "subject": "Precalculus"}
        | {"level": 2, "unique_id": "test/precalculus/807.json"},
        {"id": "test-precalculus-807", "answers": [r"\left( 3, \frac{\pi}{2} \right)"], "ability": "precalculus"},
    ),
    "aime-2024": (
        {"ID": "2024-II-4", "Problem": "Find $m+n$.", "Solution": "...", "Answer": 33},
        {"id": "2024-II-4", "answers": ["33"], "rule": "number"},
    ),
}
PROMPT = """import math
from typing import List


def area(side: float) -> float:
    \"\"\"The area of a square.\"\"\"
    return side * side


def total_area(sides: List[float]) -> float:
    \"\"\" Add up the areas of squares with the given sides, rounded down.
    >>> total_area([1.0, 2.0])
    5
    \"\"\"
"""
CHECK = """

METADATA = {
    'author': 'jt',
    'dataset': 'test'
}


def check(candidate):
    assert True, "This prints if this assert fails 1 (good for debugging!)"
    assert candidate([1.0, 2.0]) == 5
    assert candidate([]) == 0, "none"
    assert candidate([1.5]) == math.floor(area(1.5))

"""
TESTS = [f"assert count_vowels({word!r}) == {count}" for word, count in (("area", 3), ("sky", 0), ("AEIOU", 5))]
VOWELS = "def count_vowels(text):\r\n  return sum(each in 'aeiou' for each in text.lower()) "
SAMPLES |= {
    "human-eval": (
        {"task_id": "HumanEval/0", "prompt": PROMPT, "entry_point": "total_area", "test": CHECK}
        | {"canonical_solution": "    return math.floor(sum(area(side) for side in sides))\n"},
        {"id": "HumanEval-0", "answers": [], "ability": "code", "rule": "code"},
    ),
    "mbpp": (
        {"task_id": 11, "text": "Write a function to count vowels.", "code": VOWELS, "test_list": TESTS}
        | {"test_setup_code": "", "challenge_test_list": []},
        {"id": "mbpp-11", "answers": [], "rule": "code"},
    ),
    "mbpp-sanitized": (
        {"source_file": "Benchmark Questions Verification V2.ipynb", "task_id": 11, "prompt": "Write a function to count vowels."}
        | {"code": VOWELS, "test_imports": ["import math"], "test_list": TESTS},
        {"id": "mbpp-11", "answers": [], "rule": "code"},
    ),
    "gaia": (
        {
            "task_id": "c61d22de-5f6c-4958-a7f6-5e9707bd3466",
            "Question": "How many words?",
            "Level": 2,
            "Final answer": "egalitarian",
        }
        | {"file_name": "", "file_path": "", "Annotator Metadata": {"Steps": "1. Read.", "Number of steps": "1"}},
        {"id": "c61d22de-5f6c-4958-a7f6-5e9707bd3466", "answers": ["egalitarian"], "ability": "level_2", "rule": "gaia"},
    ),
}


def made(name: str, *rows: dict[str, Any], limit: int | None = None) -> Fetched:
    return convert(name, CATALOGUE[name].splits[0], rows, limit)


def test_every_data_set_has_a_sample() -> None:
    assert SAMPLES.keys() == CATALOGUE.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_row_of_its_real_schema_becomes_a_question(name: str) -> None:
    row, expected = SAMPLES[name]
    fetched = made(name, row)
    (question,) = fetched.questions.to_pylist()
    assert fetched.questions.schema == SCHEMA
    assert question | expected == question
    assert question["rule"] == CATALOGUE[name].rule
    assert question["source"].startswith(CATALOGUE[name].repository)


@pytest.mark.parametrize("name", SAMPLES)
def test_rows_of_another_schema_are_refused_with_the_columns_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"row 0 of {name} is not of its schema \(KeyError: .*\); its columns are text"):
        made(name, {"text": "x"})


def test_data_sets_of_several_hops_bring_their_passages_each_once() -> None:
    for name in ("hotpot-qa", "2wiki"):
        row = SAMPLES[name][0]
        assert made(name, row, row | {"id": "another"}).passages["passage"].to_pylist() == PASSAGES
    pairs = {"_id": "x", "context": [["Arthur's Magazine", ["It began in 1844."]]]}
    original = {key: value for key, value in SAMPLES["2wiki"][0].items() if key != "id"} | pairs
    fetched = made("2wiki", original)
    assert fetched.questions["id"].to_pylist() == ["x"]
    assert fetched.passages["passage"].to_pylist() == ["Arthur's Magazine: It began in 1844."]
    assert made("musique", SAMPLES["musique"][0]).passages["passage"].to_pylist() == [
        "Green: Green is by Steve Hillage.",
        "Miquette Giraudy: She plays.",
    ]


def test_rows_without_an_answer_are_left_out_and_counted() -> None:
    row = SAMPLES["musique"][0]
    fetched = made("musique", row | {"id": "2hop__1", "answerable": False}, row)
    assert (len(fetched.questions), fetched.left_out) == (1, 1)
    row = SAMPLES["math"][0]
    fetched = made("math", row | {"solution": "It is obvious."}, row, row | {"problem": "?"}, limit=1)
    assert (len(fetched.questions), fetched.left_out) == (1, 1)


def reference(name: str, **changed: Any) -> dict[str, Any]:
    (question,) = made(name, SAMPLES[name][0] | changed).questions.to_pylist()
    return dict(json.loads(question["reference"]))


def test_tests_of_code_are_split_where_nothing_ties_them_together() -> None:
    found = reference("human-eval")
    assert found["tests"] == [
        "assert total_area([1.0, 2.0]) == 5",
        "assert total_area([]) == 0, 'none'",
        "assert total_area([1.5]) == math.floor(area(1.5))",
    ]
    assert (found["entry_points"], found["setup"].count("def "), "import math" in found["setup"]) == (["total_area"], 1, True)
    tied = "def check(candidate):\n    import random\n    for side in range(3):\n        assert candidate([side]) == side ** 2\n"
    assert reference("human-eval", test=tied)["tests"] == [f"{tied.strip()}\n\ncheck(total_area)"]
    assert reference("mbpp-sanitized") == {"setup": "import math", "tests": TESTS, "entry_points": ["count_vowels"]}


def test_a_question_of_mbpp_shows_its_first_test_alone_and_one_with_classes_is_left_out() -> None:
    row = SAMPLES["mbpp"][0]
    classes = row | {"test_list": ["assert count_vowels(Text('a')) == 1"], "code": f"class Text(str): pass\n{VOWELS}"}
    fetched = made("mbpp", classes, row, row | {"test_setup_code": "root = Node(1)"})
    (question,) = fetched.questions["question"].to_pylist()
    assert fetched.left_out == 2
    assert [test in question for test in TESTS] == [True, False, False]


@pytest.mark.sandbox
@pytest.mark.parametrize("name", ["human-eval", "mbpp", "mbpp-sanitized"])
def test_the_solution_of_the_data_set_is_right_and_another_is_not(name: str, tmp_path: Path) -> None:
    row = SAMPLES[name][0]
    path = tmp_path / "questions.parquet"
    pq.write_table(made(name, row).questions, path)
    (question,) = read_questions(path, {}, "qa").to_pylist()
    right = row["prompt"] + row["canonical_solution"] if name == "human-eval" else row["code"]
    wrong = "def total_area(sides): return 0\ndef count_vowels(text): return 0"
    judged = judge([question | {"answer": answer} for answer in (right, wrong)])
    assert [(each.exact, round(each.partial, 2), each.fault) for each in judged] == [(1.0, 1.0, ""), (0.0, 0.33, "")]


def test_questions_of_gaia_with_a_file_come_from_the_folder_that_has_it(tmp_path: Path) -> None:
    row = SAMPLES["gaia"][0]
    attached = row | {"task_id": "x", "file_name": "table.csv", "file_path": "table.csv"}
    assert made("gaia", row, attached, row | {"task_id": "y", "Final answer": "?"}).left_out == 2
    (tmp_path / "table.csv").write_text("a,b")
    path = tmp_path / "metadata.jsonl"
    path.write_text(f"{json.dumps(attached)}\n{json.dumps(row)}\n")
    columns = {"id": "task_id", "question": "Question", "answers": "Final answer", "ability": "Level", "files": "file_name"}
    questions = read_questions(path, columns, "gaia").to_pylist()
    assert [[file["name"] for file in question["files"]] for question in questions] == [["table.csv"], []]


def test_a_solution_of_gsm8k_without_its_marker_is_of_another_schema() -> None:
    with pytest.raises(ConfigError, match=r"row 0 of gsm8k .*has no line that begins with ####"):
        made("gsm8k", {"question": "?", "answer": "24"})


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"first \boxed{1}, then \boxed{\{1,2\}}", r"\{1,2\}"),
        (r"$\fbox{3}$", "3"),
        (r"so $x = \boxed 5$.", "5"),
        (r"\boxed{\text{a {b} c}}", r"\text{a {b} c}"),
        (r"\boxed{1", ""),
        ("none", ""),
    ],
)
def test_the_last_box_holds_the_answer(solution: str, answer: str) -> None:
    assert boxed(solution) == answer


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_fetched_file_is_read_as_questions_of_its_rule(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"train{suffix}"
    row = json.dumps(SAMPLES["gsm8k"][0])
    source.write_text(f"[{row}]" if suffix == ".json" else f"{row}\n")
    arguments = ["data", "fetch", "gsm8k", "--file", str(source), "--folder", str(tmp_path / "made")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "wrote 1 questions to" in done.output
    assert "--set 'environments={gsm8k-train: {kind: files, train: " in done.output
    path = tmp_path / "made/gsm8k-train.parquet"
    assert read_questions(path, {}, "qa")["rule"].to_pylist() == ["number"]
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 1
    assert "exists; move it away" in again.output
    assert pq.read_table(path)["answers"].to_pylist() == [["1,072"]]


def test_what_there_is_not_is_told_with_what_there_is(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["data", "fetch", "gsm8"])
    assert (done.exit_code, "did you mean 'gsm8k'" in done.output) == (1, True)
    with pytest.raises(ConfigError, match="the data set gsm8k has no split 'dev' with answers; it has train, test"):
        next(from_hub("gsm8k", "dev"))
    listed = CliRunner().invoke(app, ["data", "list"])
    assert all(name in listed.output for name in CATALOGUE)
