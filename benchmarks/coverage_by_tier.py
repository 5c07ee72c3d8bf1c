"""Which share of nbrl's statements `make test` runs, and which all tiers but the long one, by folder.

Needs the package coverage, which nbrl itself does not: `uv pip install coverage`. What runs in kernels, in confined programs and
in processes that are killed is not counted. It takes about two hours on two cores; --data FOLDER keeps what was counted, and
what is there is not counted again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from hardware import cpu_machine

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("agent", "flows", "infra", "sandbox", "tasks")
TEST, MORE = "not more and not long and not machines", "more and not long and not machines"
SETTINGS = f"""[run]
source =
{"".join(f"    {ROOT / folder}{chr(10)}" for folder in FOLDERS)}omit = */infra/policies/*
parallel = true
concurrency = thread,multiprocessing
patch = subprocess,_exit
data_file = ${{COVERAGE_FOLDER}}/data
disable_warnings = no-data-collected,module-not-measured,couldnt-parse,already-imported,module-not-imported,no-ctracer
"""


def coverage(settings: Path, folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "COVERAGE_RCFILE": str(settings), "COVERAGE_FOLDER": str(folder)}
    line = [sys.executable, "-m", "coverage", *arguments]
    return subprocess.run(line, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout


def count(settings: Path, folder: Path, marks: str) -> None:
    """Run the tests with these marks; those that fail count too."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    coverage(settings, folder, "run", "-m", "pytest", "-q", "-n", "2", "-m", marks, "--timeout", "1200")


def shares(settings: Path, folders: list[Path]) -> dict[str, dict[str, float]]:
    """Statements by folder, and the share of them that ran."""
    with tempfile.TemporaryDirectory() as joined:
        coverage(settings, Path(joined), "combine", "--keep", "-q", *map(str, folders))
        coverage(settings, Path(joined), "json", "-q", "-o", f"{joined}/report.json")
        files = json.loads(Path(joined, "report.json").read_text())["files"]
    there, ran = Counter[str](), Counter[str]()
    for name, file in files.items():
        for folder in (Path(name).parts[0], "all"):
            there[folder] += file["summary"]["num_statements"]
            ran[folder] += file["summary"]["covered_lines"]
    return {folder: {"statements": there[folder], "share": round(ran[folder] / there[folder], 3)} for folder in sorted(there)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir(), "nbrl-coverage"))
    data = parser.parse_args().data.absolute()
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write(SETTINGS)
        file.flush()
        settings, test, more = Path(file.name), data / "test", data / "more"
        count(settings, test, TEST)
        count(settings, more, MORE)
        found = {"test": shares(settings, [test]), "test_and_more": shares(settings, [test, more])}
    print(json.dumps(found | {"hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
