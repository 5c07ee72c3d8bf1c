"""The program that nbrl starts in the environment of verifiers: `python __main__.py IN OUT`, two descriptors of pipes.

It runs without nbrl, and its modules are a package, so that no module of a taskset is taken for one of them.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
from nbrl_verifiers.serve import main  # noqa: E402

sys.path.pop(0)
main(int(sys.argv[1]), int(sys.argv[2]))
