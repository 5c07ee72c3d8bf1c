"""nbrl's notebook agent as a harness of verifiers: its model calls are recorded, its cells run in nbrl's own sandbox."""

import json

import verifiers.v1 as vf
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.runtimes import ProgramResult, Runtime

__all__ = ["NbrlHarness"]
NO_ANSWER = 3  # the exit code of an episode that ended without an answer: a failed task, no failed program
KEY = "NBRL_VERIFIERS_KEY"


class NbrlConfig(HarnessConfig):
    nbrl: str = "nbrl"  # the command: nbrl has an environment of its own
    max_steps: int = 20


class NbrlHarness(vf.Harness[NbrlConfig]):
    """Its trace has the answer, or None, and the status of the episode in `info`."""

    SUPPORTS_MCP = True
    NEEDS_CONTAINER = False  # bubblewrap confines the cells

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        _, prompt = self.resolve_text_prompt(data)
        command = [self.config.nbrl, "agent", "--endpoint", endpoint, "--model", ctx.model, "--api-key-env", KEY]
        command += ["--json", "--quiet", "--no-save", "--set", f"agent.max_steps={self.config.max_steps}"]
        for number, url in enumerate(mcp_urls.values(), 1):
            command += ["--set", f"rollout.tools.mcp.mcp{number}.url={url}"]
        command += ["--", prompt or ""]
        done = await runtime.run_program(command, {**self.config.resolved_env, KEY: secret})
        if done.exit_code not in (0, NO_ANSWER):
            return done
        trajectory = json.loads(done.stdout)
        trace.info |= {"answer": trajectory["answer"], "status": trajectory["status"]}
        return ProgramResult(0, done.stdout, done.stderr)
