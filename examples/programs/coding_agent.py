"""mini-swe-agent: the model writes commands of a shell that edit the working folder, and submits. See docs/programs.md."""

import os
import sys
from pathlib import Path

# Read as the packages are imported: no greeting, no look-up of prices, no second attempt at a request that was refused.
os.environ |= {"MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1"}

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

settings = yaml.safe_load((package_dir / "config" / "default.yaml").read_text())
name = f"openai/{os.environ['OPENAI_MODEL']}"
model = LitellmTextbasedModel(model_name=name, cost_tracking="ignore_errors", **settings["model"])
agent = DefaultAgent(model, LocalEnvironment(**settings["environment"]), **settings["agent"])
Path("answer.txt").write_text(agent.run(sys.stdin.read())["submission"])  # litellm prints notices of its own
