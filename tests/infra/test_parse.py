import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.infra.errors import DamagedError
from nbrl.infra.manifest import read_manifest
from nbrl.infra.parse import json_value, unseal, yaml_value

ROOT = Path(__file__).parents[2]
# What runs in a process of its own, or reads what this process wrote; two answer for each fault in its place.
ALONE = {
    "infra/parse.py",
    "infra/own_code.py",
    "infra/own_ray/setup_worker.py",
    "infra/engine/environment/equality.py",
    "infra/wandb_process.py",
    "tasks/reward/rules/scorer.py",
    "tasks/reward/rules/code/answer_side.py",
    "tasks/reward/rules/code/tests_side.py",
    "tasks/environments/kinds/gym.py",
    "tasks/environments/verifiers/nbrl_verifiers/episodes.py",
    "tasks/environments/verifiers/nbrl_verifiers/serve.py",
    "tasks/prepare/rate.py",
}
DEEP = ["[" * 100_000, '{"a":' * 100_000]
BOMB = "\n".join(f"a{n}: &a{n} " + (f"[{', '.join([f'*a{n - 1}'] * 9)}]" if n else "[1]") for n in range(9))


def test_what_others_wrote_is_parsed_in_one_place() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("flows", "infra", "tasks")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"\bjson\.loads?\b|\byaml\.\w*load\b", path.read_text())
    }
    assert found == ALONE


@pytest.mark.parametrize("text", DEEP)
@pytest.mark.attack(
    tried="JSON or YAML of a hundred thousand brackets",
    wall="one parser for what others wrote",
    effect="one sentence; other runs are listed",
)
def test_what_is_nested_too_deep_is_a_fault_in_words(text: str) -> None:
    for parse in (json_value, yaml_value):
        with pytest.raises(ValueError, match="it is nested too deep"):
            parse(text)
    for read in (unseal, read_manifest):
        with pytest.raises(DamagedError, match="nested too deep"):
            read(text.encode(), "runs/r/run.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, r"line 2, column 10: \*a0 refers to another value; write that value out"),
        ("a: &x 1\nb: {<<: *x}", r"\*x refers to another value"),
        ("a: 1\nb: 2\na: 3", r"line 3, column 1: 'a' is there twice"),
        ("a: [1", "line 1, column 6: "),
        ("a: 2026-99-99", "month must be"),
        ("? [a]\n: 1", "line 1, column 3: found unhashable key"),
        ("!!python/object/apply:os.system [id]", "could not determine a constructor"),
    ],
)
@pytest.mark.attack(
    tried="A recipe whose few lines mean millions, by aliases, or that says a key twice",
    wall="aliases and repeated keys are refused",
    effect="one sentence, with the line",
)
def test_yaml_that_means_something_else_than_it_says_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        yaml_value(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("!!bool x", "a value is not what its tag says"),
        ("!!timestamp x", "a value is not what its tag says"),
        ("!!int ''", "a value is not what its tag says"),
        ("!!float ''", "a value is not what its tag says"),
        ("!!int x", "invalid literal"),
        ("!!int 1:30", "'1:30' is no number"),
        ("!!int {=: '1:30'}", "'1:30' is no number"),
        ("!!float 1" + ":59" * 300, "is no number"),
        ("!!binary ü", "failed to convert base64 data|ascii"),
        ("!!omap {a: 1}", "expected a sequence"),
        ("#" * (1 << 20) + "\n", "it is longer than 1 MB"),
        ("[" * 102 + "]" * 102, "it is nested too deep"),
        ("0x" + "f" * 10_000, "a number has more than 64 bits"),
        ("{1: {? 0x1ffffffffffffffff : 2}}", "a number has more than 64 bits"),
        (r'"\ud800"', "a text has the character"),
        (r'[{"a\0": 1}]', "a text has the character"),
        ("a: [!!binary eA==]", "a value is bytes; write text"),
        ("{? !!binary eA== : 1}", "a value is bytes; write text"),
    ],
)
@pytest.mark.attack(
    tried="A recipe with a tag, a number or a text that fits nothing, or of fifty megabytes",
    wall="settings have bounds: bytes, depth, bits, characters",
    effect="one sentence",
)
def test_yaml_that_fits_no_setting_is_a_fault_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        yaml_value(text)
    assert "\n" not in str(caught.value)


def test_what_looks_like_a_time_is_a_text_and_other_numbers_are_numbers() -> None:
    assert yaml_value("[1:30, 1:30.5, -1:30, 1, 0x1f, 1.0e+3, .inf, 017, 1_000]") == (
        ["1:30", "1:30.5", "-1:30", 1, 31, 1e3, float("inf"), 15, 1000]
    )
    times = "1" + ":59" * 300_000
    assert yaml_value(times) == times


TAGS = ["", *(f"!!{name}" for name in ("bool", "int", "float", "timestamp", "set", "omap", "pairs", "binary", "merge", "value"))]


@given(st.sampled_from(TAGS), st.text("01x:-. ['{", max_size=6))
def test_whatever_the_loader_raises_is_a_value_error(tag: str, text: str) -> None:
    with suppress(ValueError):
        yaml_value(f"{tag} {text}")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)
    )
)
def test_json_is_what_was_written(value: object) -> None:
    assert json_value(json.dumps(value)) == value
