"""Runs ALONE, as a program in a sandbox of its own: runs the tests of a question. Nothing of an answer is executed here.

Usage: python -I tests_side.py CPU_SECONDS

The first line of standard input is `{"setup", "tests", "entry_points"}`. For every call of an entry point by a test it writes
`{"number", "call", "args", "kwargs"}` and reads what the answer's function came to; see answer_side.py. The last line that it
writes is the verdict: `{"passed"}`, a truth value for each test, or `{"fault"}` if the tests themselves do not run.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from nbrl.tasks.reward.rules.code import channel
from nbrl.tasks.reward.rules.code.values import UnsupportedError, ValueTooLargeError, decode, encode, error_of, message

FAULT_CHARS = 300


class FailedCall(BaseException):
    """A call without a result that a test can have; no test can catch it by accident."""


class RemoteAnswer:
    """The functions of the answer, called by way of the host."""

    def __init__(self, link: channel.ScorerChannel) -> None:
        self._link = link
        self._number = 0
        self.calls = 0  # of the present test
        self.failed = False  # one of them, whatever the test makes of it
        self.fault = ""  # why the tests are to blame

    def test_begins(self) -> None:
        self.calls, self.failed = 0, False

    def function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        call.__name__ = call.__qualname__ = name
        return call

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._number += 1
        self.calls += 1
        try:
            given = {"args": encode(args), "kwargs": encode(kwargs)}
            line = message({"number": self._number, "call": name, **given})
        except ValueTooLargeError as error:
            raise self._failure() from error
        except UnsupportedError as error:  # results of the answer are of types that can be passed on
            self.fault = f"a test gives {name} an argument that it cannot have: {error}"
            raise self._failure() from error
        self._link.replies.write(line)
        try:
            reply = json.loads(self._link.orders.readline())
            if reply["number"] != self._number:
                raise ValueError("the reply is to another call")
            if "value" in reply:
                return decode(reply["value"])
            raised = error_of(reply["raised"], reply["args"])
        except Exception as error:
            raise self._failure() from error
        raise raised

    def _failure(self) -> FailedCall:
        self.failed = True
        return FailedCall()


def verdict(setup: str, tests: Sequence[str], entry_points: Sequence[str], answer: RemoteAnswer) -> dict[str, Any]:
    """Return which tests pass, each with the names of the setup and of nothing else."""
    names: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(setup, "setup.py", "exec", dont_inherit=True), names)
    except BaseException as error:
        return {"fault": f"the setup fails: {type(error).__name__}: {error}"[:FAULT_CHARS]}
    names |= {name: answer.function(name) for name in entry_points}
    passed = []
    for test in tests:
        answer.test_begins()
        try:
            exec(compile(test, "test.py", "exec", dont_inherit=True), dict(names))
            passed.append(not answer.failed)
        except BaseException as error:
            if not answer.calls and not isinstance(error, AssertionError):
                answer.fault = f"a test fails before it calls the answer: {type(error).__name__}: {error}"
            passed.append(False)
        if answer.fault:
            return {"fault": answer.fault[:FAULT_CHARS]}
    return {"passed": passed}


def main(cpu: float) -> None:
    link = channel.begin(cpu)
    order = json.loads(link.orders.readline())
    link.replies.write(message(verdict(order["setup"], order["tests"], order["entry_points"], RemoteAnswer(link))))


if __name__ == "__main__":
    main(float(sys.argv[1]))
