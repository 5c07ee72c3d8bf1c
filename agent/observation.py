"""What the policy reads of a cell."""

from nbrl.agent.kernel import CellResult
from nbrl.agent.text import storable
from nbrl.agent.trajectory import Output


def observe(cell: CellResult) -> str:
    """Return what the policy reads of a cell."""
    text = "".join(_seen(output) for output in cell.outputs).rstrip("\n")
    text = storable(text)
    notice = {"timeout": "The cell took too long and was stopped.", "dead": "The kernel died."}.get(cell.status, "")
    return "\n".join(part for part in (text, notice) if part)


def _seen(output: Output) -> str:
    """Return an output's text with a final line end. An image is shown as its size; policies that can see also get the image."""
    text = output.text if output.text.endswith("\n") else output.text + "\n"
    return f"{text}[image {output.size[0]}x{output.size[1]}]\n" if output.image else text
