"""The model server at an address: a SGLang server, used with token ids, or any server of the OpenAI chat API."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from nbrl.agent.http.client import BodyTooLargeError, EncodingError, body, usable_key
from nbrl.agent.policies.chat import ChatPolicy
from nbrl.agent.policies.settings import ChatSettings
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Policy, Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.tokens.tokenizer import ChatTokenizer, Renderer
from nbrl.infra.parse import json_value
from nbrl.tasks.errors import ConfigError, first_fault

Model = TypeVar("Model", bound=BaseModel)
CONNECT_S = 10.0
ABOUT_S, ABOUT_BYTES = 30.0, 4 << 20
"""Limits of a request about the server itself, which it answers at once."""
ANSWER_S = 600.0
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass(frozen=True)
class Flags:
    """The options of the command line by which a user names a server, its model and the variable with its key."""

    address: str = "--endpoint"
    model: str = "--model"
    key: str = "--api-key-env"


@dataclass(frozen=True)
class Endpoint:
    """`url` is the server's root, or the part of a chat API's address before `/chat/completions`; `key` is sent nowhere else.

    `sees_images` is for chat APIs; `seeded` sends each request's seed; errors name `flags`.
    """

    url: str
    model: str | None = None
    key: str | None = None
    tokenizer: Path | None = None
    sees_images: bool = False
    seeded: bool = False
    flags: Flags = Flags()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def client(self) -> httpx.AsyncClient:
        """Return a client that sends the key and follows no redirect; for this machine it ignores the environment's proxy.

        Raises ConfigError if `url` is not an address.
        """
        try:
            url = httpx.URL(self.url)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"{self.flags.address} {self.url!r} is not an address: {error}") from error
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or not 0 < (url.port or 80) < 65536:
            raise ConfigError(f"{self.flags.address} {self.url!r} is not an address; give one like http://127.0.0.1:30000")
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        # Servers close idle connections after a few seconds, and a step may take longer than that.
        limits = httpx.Limits(keepalive_expiry=2.0)
        return httpx.AsyncClient(headers=self.headers, timeout=timeout, limits=limits, trust_env=url.host not in _LOCAL)


class KeyRefusedError(ConfigError):
    """A server requires a key, or another key."""


async def ask(client: httpx.AsyncClient, url: str, flags: Flags) -> Any:
    """Return the JSON at `url`, or None if the server has none there. Errors name `flags`.

    Raises ConfigError if there is no server, KeyRefusedError if it requires a key or another one.
    """
    try:
        async with asyncio.timeout(ABOUT_S), client.stream("GET", url, headers={"Accept-Encoding": "gzip, deflate"}) as response:
            if response.status_code in (401, 403):
                hint = key_hint("Authorization" in client.headers, flags)
                raise KeyRefusedError(f"{url} answered {response.status_code}; {hint}")
            if response.status_code != 200:
                return None
            content = await body(response.aiter_raw(), response.headers.get("Content-Encoding", ""), ABOUT_BYTES)
    except (httpx.HTTPError, TimeoutError, UnicodeError) as error:  # the last for names that no resolver takes
        reason = str(error) or type(error).__name__
        raise ConfigError(f"nothing answers at {url}: {reason}; start the server or correct {flags.address}") from error
    except (BodyTooLargeError, EncodingError) as error:
        raise ConfigError(f"what {url} answers cannot be read: {error}; correct {flags.address}") from error
    try:
        return json_value(content)
    except (ValueError, RecursionError):
        return None


async def tokenizer_of(client: httpx.AsyncClient, endpoint: Endpoint) -> Path | None:
    """Return the folder of the tokenizer of the SGLang server at `endpoint`, or None to use the chat API.

    It is None if the address names a chat API (`…/v1`), the server is not SGLang, or its tokenizer is not on this machine.
    """
    if endpoint.tokenizer is not None:
        return endpoint.tokenizer
    root = endpoint.url.rstrip("/")
    if root.endswith("/v1"):
        return None
    for page in ("get_model_info", "model_info"):
        try:
            info = await ask(client, f"{root}/{page}", endpoint.flags)
        except KeyRefusedError:  # every server of models answers what `served` requests
            return None
        match info:
            case {"tokenizer_path": str(path)} if _is_here(path):
                return Path(path)
    return None


def _is_here(folder: str) -> bool:
    """Return whether the folder that a server names holds a tokenizer on this machine."""
    try:
        return (Path(folder) / "tokenizer.json").is_file()
    except (OSError, ValueError):  # not the name of a file here
        return False


def chat_url(endpoint: Endpoint) -> str:
    """Return the address of the chat API: a server's root has it below `/v1`."""
    root = endpoint.url.rstrip("/")
    return f"{root}/v1" if httpx.URL(root).path in ("", "/") else root


async def served(client: httpx.AsyncClient, endpoint: Endpoint) -> dict[str, int | None]:
    """Return the models of the chat API by name, each with its maximum context if the server reports it.

    Raises ConfigError if it refuses the key, unless a model of the chat API is named: the server may refuse only this list.
    """
    try:
        reply = await ask(client, f"{chat_url(endpoint)}/models", endpoint.flags)
    except KeyRefusedError:
        if endpoint.model is None or endpoint.tokenizer is not None:
            raise
        return {}
    match reply:
        case {"data": list(models)}:
            named = [model for model in models if isinstance(model, dict) and "id" in model]
            limits = [model.get("max_model_len") for model in named]
            return {
                str(model["id"]): limit if isinstance(limit, int) else None for model, limit in zip(named, limits, strict=True)
            }
    return {}


def model_of(endpoint: Endpoint, models: dict[str, int | None]) -> str:
    """Return the model's name: the one given, or the only one of `models`. Raises ConfigError."""
    if endpoint.model:
        return endpoint.model
    flag = endpoint.flags.model
    if len(models) > 1:
        raise ConfigError(f"{endpoint.url} serves several models; name one by {flag}: {', '.join(list(models)[:20])}")
    if not models:
        raise ConfigError(f"{endpoint.url} does not say which model it serves; name it by {flag}")
    return next(iter(models))


def check_limit(endpoint: Endpoint, models: dict[str, int | None], context_tokens: int) -> None:
    """Raises ConfigError if the model's context is smaller than the agent's. A single served model matches any name."""
    only = next(iter(models.values())) if len(models) == 1 else None
    limit = models.get(endpoint.model or "", only)
    if limit is not None and context_tokens > limit:
        raise ConfigError(
            f"the model at {endpoint.url} reads at most {limit} tokens; set agent.context_tokens to {limit}, and "
            "agent.action_tokens to fewer"
        )


def key_hint(given: bool, flags: Flags) -> str:
    """Return what to change on the command line when a server refuses the key."""
    if given:
        return f"put a key that it accepts into the environment variable that {flags.key} names"
    return f"put its key into an environment variable and name that one by {flags.key} NAME"


async def connect(
    stack: AsyncExitStack,
    endpoint: Endpoint,
    sampling: Sampling,
    agent: AgentSettings,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[Policy, Renderer]:
    """Return the policy at `endpoint`, which lives as long as `stack`, and its renderer. Raises ConfigError or AgentError.

    `report` is called for each retry of a failed request.
    """
    client = await stack.enter_async_context(endpoint.client())
    folder = await tokenizer_of(client, endpoint)
    models = await served(client, endpoint)
    check_limit(endpoint, models, agent.context_tokens)
    if folder is None:
        chat = checked(
            ChatSettings,
            endpoint=chat_url(endpoint),
            model=model_of(endpoint, models),
            sees_images=endpoint.sees_images,
            seeded=endpoint.seeded,
        )
        hint = key_hint(endpoint.key is not None, endpoint.flags)
        policy = ChatPolicy(client, chat, sampling, agent.thinking, report, hint)
        return policy, EstimatingRenderer(endpoint.sees_images)
    if endpoint.sees_images:
        raise ConfigError(
            f"--sees-images is for chat APIs, and {endpoint.url} is used with token ids; "
            f"give --endpoint {endpoint.url.rstrip('/')}/v1 without --tokenizer"
        )
    tokenizer = ChatTokenizer.load(folder, agent)
    session = await stack.enter_async_context(engine_session(ANSWER_S, endpoint.headers, client.trust_env))
    return SglangPolicy(session, endpoint.url, tokenizer.stop_ids, sampling, endpoint.seeded), tokenizer


def checked(model: type[Model], /, **options: Any) -> Model:
    """Return a settings model with these values. Raises ConfigError in one sentence that names the option."""
    try:
        return model.model_validate(options)
    except ValidationError as error:
        place, fault = first_fault(error)
        raise ConfigError(f"--{place[0].replace('_', '-')}: {fault}" if place else fault) from error


def key_in(variable: str | None) -> str | None:
    """Return the key in an environment variable, if one is named. Raises ConfigError."""
    try:
        return usable_key(variable or None) or None
    except ValueError as error:
        raise ConfigError(str(error)) from error
