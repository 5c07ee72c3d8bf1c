"""A model behind an OpenAI-compatible endpoint, asked one question."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nbrl.agent.http.json_service import Service, ServiceError


class ChatModel:
    """POST /chat/completions."""

    def __init__(self, base_url: str, name: str, variable: str | None, max_tokens: int, timeout_s: float) -> None:
        self.service = Service("the model behind the tool", base_url, variable=variable, timeout_s=timeout_s)
        self._name, self._max_tokens = name, max_tokens

    async def ask(self, content: str | list[dict[str, Any]], sampling: Mapping[str, Any] = MappingProxyType({})) -> str:
        """The model's answer to one user message. `sampling`: more fields of the request. Raises ServiceError."""
        messages = [{"role": "user", "content": content}]
        request = {"model": self._name, "messages": messages, "max_tokens": self._max_tokens, **sampling}
        reply = await self.service.post("/chat/completions", request)
        match reply:
            case {"choices": [{"message": {"content": str(answer)}}, *_]}:
                return answer
        raise ServiceError("the model behind the tool answered JSON without a message")
