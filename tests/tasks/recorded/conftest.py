"""What the tests of recorded sessions share."""

from collections.abc import Iterator

import pytest

from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.rendering import rendering
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from tests.agent.families import FAMILIES, write_folder


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversations]:
    folder = write_folder(tmp_path_factory.mktemp("family") / "qwen2_5", FAMILIES["qwen2_5"])
    with rendering():
        yield Conversations.load(ChatTokenizer.load(folder), AgentSettings())
