"""Counts the requests of an adapter right where clients leave. SGLang unloads an adapter once no request uses it, and forgets to
count down where a request ends without its client: the unload would wait for ever, and with it every later load.

A request that the scheduler has stays known until the scheduler says that it ended; only then does its adapter go. Runs in the
engine's environment.
"""

import asyncio
import weakref
from typing import Any

from sglang.srt.managers.tokenizer_manager import TokenizerManager


def install() -> None:
    """Install the count for the whole process."""
    send, aborted = TokenizerManager._send_one_request, TokenizerManager._handle_abort_req
    sent: Any = weakref.WeakValueDictionary()  # states of requests that the scheduler has, by id

    def send_one(self: Any, request: Any) -> None:
        send(self, request)
        if (state := self.rid_to_state.get(request.rid)) is not None:
            sent[request.rid] = state

    def discard(self: Any, obj: Any) -> None:
        """Discard the requests that the scheduler does not have; its answers end the others."""
        several = [obj] if getattr(obj, "is_single", True) else [obj[place] for place in range(len(obj.rid))]
        for each in several:
            if each.rid not in sent and self.rid_to_state.pop(each.rid, None) is not None:
                release(self, each)

    def handle_abort(self: Any, answer: Any) -> None:
        state = self.rid_to_state.get(answer.rid)
        aborted(self, answer)
        if state is not None and answer.rid not in self.rid_to_state:
            release(self, state.obj)

    def release(self: Any, obj: Any) -> None:
        if obj.lora_path and obj.lora_id:
            asyncio.get_running_loop().create_task(self.lora_registry.release(obj.lora_id))

    TokenizerManager._send_one_request = send_one
    TokenizerManager._discard_pending_req_states = discard
    TokenizerManager._handle_abort_req = handle_abort
