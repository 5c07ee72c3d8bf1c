"""Starts a worker with the variables that Ray Train asks for, as Ray's own file of this name does, which imports Ray for it."""

import json
import os
import sys

CONTEXT = "--serialized-runtime-env-context="

if __name__ == "__main__":
    context = next(json.loads(each.removeprefix(CONTEXT)) for each in sys.argv if each.startswith(CONTEXT))
    os.environ.update(context["env_vars"])
    left = [each for each in sys.argv[1:] if not each.startswith((CONTEXT, "--language="))]
    os.execv(sys.executable, [sys.executable, *left])
