"""The agent as the tiny policy knows it.

`context_tokens` is chosen for the shipped tokenizer so that a second step sees everything before it, and a third never does:
it gets the task, the notepad and the last step.
"""

from nbrl.agent.settings import AgentSettings

TINY_AGENT = AgentSettings(
    max_steps=4,
    context_tokens=164,
    action_tokens=48,
    observation_chars=200,
    trim="hard",
    cell_timeout_s=10.0,
    deadline_s=120.0,
    system_prompt="Think, then write code with search(query), notepad.add_facts([...]), submit_final_answer(answer).",
)
