"""A kernel without a sandbox, for TRUSTED code only: demonstrations and tests. Never wire a model's cells to it."""

import ast
import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

from agent.kernel import CellResult
from agent.prelude import STATE_EXPRESSION
from agent.trajectory import Output


class InlineKernel:
    """Runs each cell in this process, in a namespace of its own. Tools are awaited from a thread, so a loop must be running."""

    def __init__(self, prelude: str, call: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._namespace: dict[str, Any] = {"__name__": "__main__", "host_call": self._host_call}
        exec(compile(prelude, "<prelude>", "exec"), self._namespace)

    def _host_call(self, name: str, arguments: dict[str, Any]) -> Any:
        async def call() -> Any:
            return await self._call(name, arguments)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    async def execute(self, code: str, timeout: float) -> CellResult:
        return await asyncio.to_thread(self._run, code)

    def _run(self, code: str) -> CellResult:
        buffer = io.StringIO()
        self._namespace["print"] = lambda *values, **kw: print(*values, **{"file": buffer, **kw})
        outputs: list[Output] = []
        try:
            tree = ast.parse(code)
            last: ast.Expr | None = None
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = tree.body[-1]
                del tree.body[-1]
            exec(compile(tree, "<cell>", "exec"), self._namespace)
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), self._namespace) if last else None
            if value is not None:
                outputs.append(Output(kind="result", text=repr(value)))
            error = None
        except Exception as raised:
            error = Output(kind="error", text=f"{type(raised).__name__}: {raised}")
        if buffer.getvalue():
            outputs.insert(0, Output(kind="stream", text=buffer.getvalue()))
        if error is not None:
            outputs.append(error)
        state = self._namespace[STATE_EXPRESSION]._repr_json_()
        return CellResult("error" if error else "ok", outputs, state)
