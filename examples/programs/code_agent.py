"""smolagents' CodeAgent: the model writes Python, which runs here and calls the environment's tools. See docs/programs.md."""

import os
import sys

from smolagents import CodeAgent, LogLevel, MCPClient, OpenAIModel

with MCPClient({"url": os.environ["NBRL_MCP"]}, structured_output=False) as tools:
    agent = CodeAgent(tools, OpenAIModel(os.environ["OPENAI_MODEL"]), max_steps=8, verbosity_level=LogLevel.OFF)
    print(agent.run(sys.stdin.read()))
