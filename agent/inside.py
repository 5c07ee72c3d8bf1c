"""Runs INSIDE the kernel: the names a cell can use. Sent as source text, so it imports nothing of this package.

Whatever this reports can be forged by the cell; the host validates and caps it, and nothing that earns reward trusts it.
"""


class Notepad:
    """Plan, facts and a draft that stay in view whatever is trimmed."""

    def __init__(self) -> None:
        self.plan: list[dict] = []
        self.facts: list[str] = []
        self.draft: str = ""

    def add_todo(self, items: str | list) -> None:
        """Append one item or several to the plan."""
        self.plan += [{"text": str(item), "done": False} for item in ([items] if isinstance(items, str) else items)]

    def mark_done(self, index: int) -> None:
        """Tick item `index` (counted from 0) of the plan."""
        self.plan[index]["done"] = True

    def add_facts(self, facts: str | list) -> None:
        """Append one fact or several."""
        self.facts += [str(fact) for fact in ([facts] if isinstance(facts, str) else facts)]

    def write_draft(self, text: str) -> None:
        """Replace the draft."""
        self.draft = str(text)


def _clean(value):  # type: ignore[no-untyped-def]
    """Text that can be sent: lone surrogates cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


class _State:
    """Travels back with each cell's reply as application/json."""

    def __init__(self) -> None:
        self.answer: str | None = None

    def _repr_json_(self) -> dict:
        return _clean({"answer": self.answer, "notepad": {"plan": notepad.plan, "facts": notepad.facts, "draft": notepad.draft}})


def submit_final_answer(answer: object) -> None:
    """End the trajectory with this answer; the last submission counts."""
    _nbrl_state.answer = str(answer)
    print("submitted")


notepad = Notepad()
_nbrl_state = _State()
