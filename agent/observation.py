"""What the policy reads of a cell."""

from nbrl.agent.kernel import CellResult
from nbrl.agent.trajectory import Output


def observe(cell: CellResult) -> str:
    """What the policy reads of a cell."""
    text = "".join(_seen(output) for output in cell.outputs).rstrip("\n")
    text = text.encode("utf-8", "replace").decode()
    notice = {"timeout": "The cell took too long and was stopped.", "dead": "The kernel died."}.get(cell.status, "")
    return "\n".join(part for part in (text, notice) if part)


def _seen(output: Output) -> str:
    """An output's text, ended by a line end. An image is its size; policies that can see get it besides."""
    text = output.text if output.text.endswith("\n") else output.text + "\n"
    return f"{text}[image {output.size[0]}x{output.size[1]}]\n" if output.image else text


def cut_middle(text: str, limit: int) -> str:
    """Head and tail survive, the middle is replaced by a mark."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters cut]\n{text[len(text) - (limit - head) :]}"
