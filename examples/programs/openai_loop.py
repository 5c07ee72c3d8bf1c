"""The package openai in a loop: the model thinks until it writes an answer. See docs/programs.md."""

import os
import sys

from openai import OpenAI

form = "Think step by step. Once you are sure, write the answer alone on the last line, after `Answer:`."
chat = [{"role": "system", "content": form}, {"role": "user", "content": sys.stdin.read()}]
client = OpenAI()
for _ in range(4):
    said = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=chat).choices[0].message
    _, found, answer = said.content.rpartition("Answer:")
    if found:
        print(answer.strip())
        break
    chat += [said, {"role": "user", "content": "Go on, and end with the answer."}]
