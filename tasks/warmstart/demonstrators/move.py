"""One action of a demonstrator, before it is written in a grammar."""

from dataclasses import dataclass

from nbrl.agent.grammar import Grammar


@dataclass(frozen=True)
class Move:
    """A thought and a cell. Without code the action is malformed: thinking alone."""

    think: str
    code: str = ""

    def text(self, grammar: Grammar) -> str:
        return grammar.write(self.think, self.code) if self.code else f"<{grammar.think_tag}>{self.think}</{grammar.think_tag}>"
