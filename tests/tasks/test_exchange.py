"""A program that is given its input and says what it likes."""

import sys
import time

import pytest

from nbrl.tasks.reward.rules.exchange import ERRORS_BYTES, exchange

pytestmark = pytest.mark.process


def said_by(program: str, given: bytes = b"", limit_s: float = 60, limit_bytes: int = 1 << 20) -> tuple[bytes, bytes, bool]:
    return exchange([sys.executable, "-I", "-c", program], given, limit_s, limit_bytes)


def test_what_goes_in_comes_out() -> None:
    given = b"line\n" * 100_000
    assert said_by("import sys; sys.stdout.write(sys.stdin.read()); sys.stderr.write('end')", given) == (given, b"end", False)


def test_what_is_too_much_is_cut_and_ends_the_program() -> None:
    flood = "import sys\nwhile True: sys.std{}.write('x' * 65536)"
    assert said_by(flood.format("out"), limit_bytes=1000) == (b"x" * 1000, b"", False)
    assert said_by(flood.format("err")) == (b"", b"x" * ERRORS_BYTES, False)


def test_what_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    assert said_by("import time; print('first', flush=True); time.sleep(600)", limit_s=2) == (b"first\n", b"", True)
    assert time.monotonic() - began < 60


def test_a_program_that_reads_nothing_is_left_alone() -> None:
    assert said_by("print('done')", b"x" * 10_000_000) == (b"done\n", b"", False)
