"""Templates that want users and assistants to take turns, or that have no system turn, as Gemma's.

Our prompts have a task and a tail, or an observation and a tail, in a row. For such a template they are one turn of parts that
are stripped and joined by an empty line; where it has no system turn, the system prompt is the first part. A prompt is still made
by appending: a user's turn stays open after each part, and what precedes an action closes it.
"""

from itertools import groupby
from string import punctuation

from nbrl.agent.errors import TokenizerError
from nbrl.agent.messages import Role
from nbrl.agent.tokens.chat_template import PROBE, Frame, Glue, Template, Turns

JOIN = "\n\n"
ENDS = [*punctuation, "a", "1", "é", "字", "🙂"]
"""Ends of a part, to prove that a tokenizer never joins them with what follows."""


def joined(messages: Turns, with_system: bool) -> Turns:
    """Return neighbours as one turn, the system prompt in the first if the template has no turn `with_system`."""
    turns: Turns = []
    shown = [("user" if role == "system" and not with_system else role, role, text) for role, text in messages]
    for turn, group in groupby(shown, lambda each: each[0]):
        parts = [text if role == "assistant" else text.strip() for _, role, text in group]
        turns.append((turn, JOIN.join(parts)))
    return turns


def taken(template: Template, messages: Turns) -> Turns:
    """Return the conversation as the template takes it. Raises TokenizerError if there is no such way."""
    try:
        template.render(messages)
    except TokenizerError:
        for with_system in (True, False):
            shown = joined(messages, with_system)
            try:
                template.render(shown)
            except TokenizerError:
                continue
            return shown
        raise
    return messages


def read_glue(template: Template) -> Glue:
    """Read the glue of a template. Raises TokenizerError if it does more than append."""
    shown = taken(template, PROBE)
    if shown is PROBE:
        return template.glue()
    system: Turns = [("system", "probe one")] if shown[0][0] == "system" else []
    first: Turns = [*system, ("user", "probe two")]
    acted: Turns = [*first, ("assistant", "probe three")]
    *top, closed = template.cut(template.turns(first), first)
    start, between = top if system else (top[0], JOIN)
    *_, answering, next_turn, opening = template.cut(
        template.render([*acted, ("user", "probe four")], opening=True), [*acted, ("user", "probe four")]
    )
    ended = template.cut(template.turns(acted), acted)[-1]
    users: dict[Role, str] = {"system": between, "user": JOIN, "assistant": next_turn.removeprefix(ended)}
    glue = Glue(
        system=Frame(start, "", strips=True),
        users={before: Frame(text, "", strips=True) for before, text in users.items()},
        assistant=Frame(answering, ended),
        opening=opening,
    )
    appends = next_turn.startswith(ended) and answering.startswith(closed) and opening.startswith(answering)
    template.check(glue, shown if appends else [])
    return glue
