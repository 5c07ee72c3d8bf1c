"""A JSON object whose fields are not what was written is never read as other content."""

import json
import math
import random

import pytest

from nbrl.infra.errors import DamagedError
from nbrl.infra.parse import seal, unseal

FIELDS = {"iteration": 3, "metrics": {"loss": 0.1, "worst": math.inf}, "text": "ä\n", "artifacts": [{"path": "p"}], "none": None}


def test_what_was_sealed_is_read_again_and_stays_plain_json() -> None:
    assert unseal(seal(FIELDS), "x") == FIELDS
    assert json.loads(seal(FIELDS))["iteration"] == 3


def test_an_object_without_a_seal_is_taken_as_it_is() -> None:
    assert unseal(b'{"a": 1}', "x") == {"a": 1}


def test_no_flip_of_a_bit_is_read_as_other_content() -> None:
    whole, draw = seal(FIELDS), random.Random(0)
    for _ in range(1000):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            fields = unseal(bytes(data), "x")
        except DamagedError:
            continue
        assert {key: fields[key] for key in FIELDS} == FIELDS  # white space, or the name of the seal itself


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"1"])
def test_what_is_no_object_is_one_sentence_that_says_where(data: bytes) -> None:
    with pytest.raises(DamagedError, match=r"^runs/a/record\.json is damaged: [^\n]*; bring it back from a copy$"):
        unseal(data, "runs/a/record.json")
