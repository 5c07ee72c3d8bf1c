"""`python -m tests.words`: refuses words of CONTRIBUTING.md's list where the code has more of them than it had.

words.json has how often each is left, which only falls: after a word was replaced, `--lower` writes it anew.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT = Path(__file__).with_name("words.json")
FOLDERS = ("agent", "flows", "infra", "sandbox", "tasks")
INSTEAD = {
    "anybody": "any user, any process",
    "books": "database, records",
    "born": "started, created",
    "desk": "queue",
    "hands out": "assigns, passes, sends",
    "hears": "gets, receives",
    "lane": "worker, row",
    "newborn": "forked, new",
    "nobody": "no process, no user, None",
    "shelf": "store",
    "somebody": "another process, a user",
    "stands": "is, lies",
    "tells": "reports, says, returns",
    "told": "reported, messages",
    "whoever": "every process that",
    "wish": "options, request",
}
FORMS = {
    "hands out": "hand(?:s|ed|ing)? (?:out|over|on|it|them)",
    "hears": "hears?|heard",
    "lane": "lanes?",
    "shelf": "shelf|shelves",
    "stands": "stands?|standing",
    "tells": "tells?|telling",
    "wish": "wish(?:es|ed)?",
}


def counted(text: str) -> Counter[str]:
    """Return how often each word of the list is in a text."""
    return Counter({word: len(re.findall(rf"\b(?:{FORMS.get(word, word)})\b", text, re.IGNORECASE)) for word in INSTEAD})


def main() -> None:
    files = subprocess.run(
        ["git", "ls-files", *(f"{folder}/*.py" for folder in FOLDERS)], cwd=ROOT, capture_output=True, text=True
    )
    found: Counter[str] = Counter()
    for name in files.stdout.split():
        if (ROOT / name).is_file():
            found += counted((ROOT / name).read_text(encoding="utf-8"))
    if "--lower" in sys.argv:
        LEFT.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
        return
    left = json.loads(LEFT.read_text(encoding="utf-8"))
    if more := [word for word in INSTEAD if found[word] > left.get(word, 0)]:
        words = "; ".join(f"{word!r} {found[word]} times, {left.get(word, 0)} before: write {INSTEAD[word]}" for word in more)
        raise SystemExit(f"words that CONTRIBUTING.md asks not to use: {words}")


if __name__ == "__main__":
    main()
