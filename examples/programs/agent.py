"""An agent of a few lines: the model writes Python, this runs it and shows the model what came out. See docs/programs.md."""

import ast
import contextlib
import io
import json
import os
import re
import sys
import types
import urllib.request

STEPS = 4
facts, answers = [], []


def post(address, **body):
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def search(query):
    call = {"name": "search", "arguments": {"query": query}}
    answer = post(os.environ["NBRL_MCP"], jsonrpc="2.0", id=1, method="tools/call", params=call)
    return answer["result"]["content"][0]["text"]


def run(code):
    """Return what a cell prints, values of its statements too."""
    notepad = types.SimpleNamespace(add_facts=facts.extend)
    names = {"search": search, "notepad": notepad, "submit_final_answer": lambda answer: answers.append(str(answer))}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            for statement in ast.parse(code).body:
                exec(compile(ast.Interactive([statement]), "cell", "single"), names)  # prints its value, as a notebook does
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    return printed.getvalue().strip()


form = "Think, then write code with search(query), notepad.add_facts([...]), submit_final_answer(answer)."
task = [{"role": "system", "content": form}, {"role": "user", "content": sys.stdin.read()}]
step = []  # the last one; what it should remember of earlier ones the model notes
for left in range(STEPS, 0, -1):
    notes = "<notepad>\n" + "\n".join(f"- {fact}" for fact in facts) + "\n</notepad>\n" if facts else ""
    budget = {"role": "user", "content": f"{notes}<budget>steps {left}, tokens {100 if left == STEPS else 0}</budget>"}
    said = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", messages=[*task, *step, budget])["choices"][0]["message"][
        "content"
    ]
    code = re.search("<code>(.*?)</code>", said, re.DOTALL)
    shown = run(code[1]) if code else "Malformed action."
    if answers:
        print(answers[0])
        break
    step = [{"role": "assistant", "content": said}, {"role": "user", "content": f"<output>{shown}</output>"}]
