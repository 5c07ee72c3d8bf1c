"""Tools over files of the workspace. What they read is hostile; the host reads it, by a function that stays in the workspace."""

import base64
from collections.abc import Awaitable, Callable

from nbrl.agent.http.json_service import ChatModel
from nbrl.agent.pictures import picture_kind
from nbrl.agent.tools.files.documents import DocumentError, Documents, kind_of
from nbrl.agent.tools.functions import FunctionTool

IMAGE_BYTES = 8 << 20
QUESTION_CHARS = 4_000

ReadFile = Callable[[str], Awaitable[bytes]]
"""The bytes of a regular file of the workspace, bounded; raises with a message for the cell."""


def visual_qa(read_file: ReadFile, model: ChatModel) -> FunctionTool:
    """Return the tool `visual_qa(image_path, question)`."""

    async def visual_qa(image_path: str, question: str) -> str:
        """Looks at an image file (PNG, JPEG, GIF, WebP) of the workspace and answers a question about it.

        Args:
            image_path: the file, relative to the notebook's folder
            question: what you want to know of the image
        """
        data = await read_file(image_path)
        kind = image_kind(data)
        if len(data) > IMAGE_BYTES:
            raise DocumentError(f"the image takes {len(data)} bytes, {IMAGE_BYTES} are allowed; make it smaller")
        url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
        text_part = {"type": "text", "text": question[:QUESTION_CHARS]}
        return await model.ask([text_part, {"type": "image_url", "image_url": {"url": url}}])

    return FunctionTool(visual_qa)


def image_kind(data: bytes) -> str:
    """Return the media type from the first bytes. Raises DocumentError for anything but an image."""
    kind = picture_kind(data)
    if kind is None:
        raise DocumentError("the file is no PNG, JPEG, GIF or WebP image")
    return kind


def file_text(read_file: ReadFile, documents: Documents) -> FunctionTool:
    """Return the tool `inspect_file(path)`, where there is no model to ask."""

    async def inspect_file(path: str) -> str:
        """Returns the text of a file of the workspace: text, CSV, JSON, HTML, PDF, Word (docx) or Excel (xlsx).

        Args:
            path: the file, relative to the notebook's folder
        """
        return await documents.to_text(kind_of(path), await read_file(path))

    return FunctionTool(inspect_file)


def inspect_file(read_file: ReadFile, documents: Documents, model: ChatModel) -> FunctionTool:
    """Return the tool `inspect_file(path, question)`."""

    async def inspect_file(path: str, question: str = "") -> str:
        """Answers a question about a file of the workspace: text, CSV, JSON, HTML, PDF, Word (docx) or Excel (xlsx).

        Args:
            path: the file, relative to the notebook's folder
            question: what you want to know; without one you get the text of the file
        """
        text = await documents.to_text(kind_of(path), await read_file(path))
        if not question.strip():
            return text
        return await model.ask(f"{question[:QUESTION_CHARS]}\n\nThe file {path[:200]!r} holds:\n\n{text}")

    return FunctionTool(inspect_file)
