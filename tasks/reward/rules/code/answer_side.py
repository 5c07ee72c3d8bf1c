"""Runs ALONE, as a program in a sandbox of its own: executes an answer and calls its functions. All of it is hostile.

Usage: python -I answer_side.py CPU_SECONDS

The first line of standard input is `{"setup", "answer"}`, and it says that it is loaded, or why it is not. Each further line is a
call, `{"number", "call", "args", "kwargs"}`; the reply has the number and `value`, `raised` with `args`, or `failed`. The
tests and what they expect never come here, so whatever an answer finds or changes in this process, it can lie only about what
its own functions return.
"""

import json
import re
import sys
from textwrap import dedent
from types import ModuleType
from typing import Any

from nbrl.tasks.reward.rules.code import channel
from nbrl.tasks.reward.rules.code.values import UnsupportedError, ValueTooLargeError, decode, encode, message, raised

NAME = "answer"  # of the module; code below `if __name__ == "__main__"` does not run
FAULT_CHARS = 300
# A block of code in Markdown.
BLOCK = re.compile(r"^(?P<fence>[ \t]*`{3,})[^\n`]*\n(?P<source>.*?)(?:^(?P=fence)[ \t]*$|```\s*\Z)", re.DOTALL | re.MULTILINE)


def source_of(answer: str) -> str:
    """Return the Python of an answer, which may be indented as a whole, or the only block of code in Markdown."""
    source = dedent(answer.removeprefix("\ufeff"))
    try:
        compile(source, f"{NAME}.py", "exec", dont_inherit=True)
    except SyntaxError:
        blocks = list(BLOCK.finditer(source))
        return dedent(blocks[0]["source"]) if len(blocks) == 1 else source
    return source


def load(setup: str, answer: str) -> dict[str, Any]:
    """Return the names that the answer defines, on top of those of the setup."""
    module = sys.modules[NAME] = ModuleType(NAME)
    for source in (setup, source_of(answer)):
        exec(compile(source, f"{NAME}.py", "exec", dont_inherit=True), vars(module))
    return vars(module)


def reply(names: dict[str, Any], call: dict[str, Any]) -> bytes:
    """Return the result of calling a function."""
    function = names.get(call["call"])
    if not callable(function) or isinstance(function, type):
        return message({"number": call["number"], "failed": f"it defines no function {call['call']}"})
    try:
        result: dict[str, Any] = {"value": encode(function(*decode(call["args"]), **decode(call["kwargs"])))}
        return message({"number": call["number"], **result})
    except (UnsupportedError, ValueTooLargeError) as error:
        result = {"failed": str(error)}
    except BaseException as error:
        result = raised(error)
    return message({"number": call["number"], **result})


def main(cpu: float) -> None:
    orders, replies = channel.begin(cpu)
    order = json.loads(orders.readline())
    try:
        names = load(order["setup"], order["answer"])
    except BaseException as error:
        replies.write(message({"failed": f"{type(error).__name__}: {error}"[:FAULT_CHARS]}))
        return
    replies.write(channel.LOADED)
    for line in orders:
        replies.write(reply(names, json.loads(line)))


if __name__ == "__main__":
    main(float(sys.argv[1]))
