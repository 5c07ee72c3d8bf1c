"""A kernel without a sandbox, for TRUSTED code only: demonstrations and tests. Never wire a model's cells to it."""

import ast
import asyncio
import builtins
import io
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from inspect import CO_COROUTINE
from types import CodeType
from typing import Any

from nbrl.agent.kernel import CellResult
from nbrl.agent.kernels.prelude import state_expression
from nbrl.agent.trajectory import Output

AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_compile = lru_cache(maxsize=64)(compile)


class InlineKernel:
    """Runs each cell in this process, in a namespace of its own. Tools are awaited from a thread, so a loop must be running.

    `open` reads the `files`, texts by their names, and no others.
    """

    def __init__(
        self,
        prelude: str,
        call: Callable[[str, dict[str, Any]], Awaitable[Any]],
        files: Mapping[str, str] | None = None,
    ) -> None:
        self._call, self._files = call, files or {}
        self._loop = asyncio.get_running_loop()
        self._printed = io.StringIO()
        known = {**vars(builtins), "print": self._print, "host_call": self._host_call, "compile": _compile}
        known["open"] = self._open
        self._namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": known}
        exec(_compile(prelude, "<prelude>", "exec"), self._namespace)

    def _print(self, *values: object, **named: Any) -> None:
        print(*values, **{"file": self._printed, **named})

    def _open(self, name: str) -> io.StringIO:
        if name not in self._files:
            raise FileNotFoundError(name)
        return io.StringIO(self._files[name])

    def _host_call(self, name: str, arguments: dict[str, Any]) -> Any:
        async def call() -> Any:
            return await self._call(name, arguments)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    async def execute(self, code: str, timeout: float, message: str = "") -> CellResult:
        return await asyncio.to_thread(self._run, code, message)

    def _run(self, code: str, message: str) -> CellResult:
        self._printed = io.StringIO()
        self._state(message)
        outputs: list[Output] = []
        try:
            tree = ast.parse(code)
            last: ast.Expr | None = None
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = tree.body[-1]
                del tree.body[-1]
            self._evaluate(compile(tree, "<cell>", "exec", AWAITS))
            value = self._evaluate(compile(ast.Expression(last.value), "<cell>", "eval", AWAITS)) if last else None
            if value is not None:
                outputs.append(Output(kind="result", text=repr(value)))
            error = None
        except Exception as raised:
            error = Output(kind="error", text=f"{type(raised).__name__}: {raised}")
        if self._printed.getvalue():
            outputs.insert(0, Output(kind="stream", text=self._printed.getvalue()))
        if error is not None:
            outputs.append(error)
        return CellResult("error" if error else "ok", outputs, self._state(message))

    def _evaluate(self, code: CodeType) -> Any:
        value = eval(code, self._namespace)
        return asyncio.run(value) if code.co_flags & CO_COROUTINE else value

    def _state(self, message: str) -> Any:
        """Return the state as it would travel, or None where a cell has broken it."""
        try:
            return json.loads(json.dumps(eval(state_expression(message), self._namespace)._repr_json_()))
        except Exception:
            return None
