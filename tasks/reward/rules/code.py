"""The reference of the rule `code`: tests that raise unless they pass, and what is run before the answer and the tests."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Tests(BaseModel):
    """Each test is Python that raises unless the answer's functions pass it; `setup` is run first, for both."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    __test__ = False  # pytest's own mark for what is no test of ours

    setup: str = ""
    tests: list[str] = Field(min_length=1)


def with_tests(tests: Sequence[str], setup: str = "") -> str:
    """The reference with these tests."""
    return Tests(setup=setup, tests=list(tests)).model_dump_json()


def has_tests(reference: str) -> bool:
    """Whether this is such a reference."""
    try:
        Tests.model_validate_json(reference)
    except ValidationError:
        return False
    return True
