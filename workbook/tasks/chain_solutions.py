"""The correct completions of a prompt of the chain task, which are too many to list."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from workbook.tasks.chain_words import CLOSINGS, LINKS, OPENINGS
from workbook.tasks.task import Task


@dataclass(frozen=True)
class Solutions(Collection):
    """The correct completions of one prompt: sized, iterable, asked with `in`, never listed unless you list them."""

    task: Task  # a Chain
    prompt: str

    def __len__(self) -> int:
        steps = len(self.task._parse(self.prompt)[1])
        return len(OPENINGS) * len(LINKS) ** steps * len(CLOSINGS)

    def __iter__(self) -> Iterator[str]:
        return (self.task.render(self.prompt, style) for style in self.task.styles(self.prompt))

    def __contains__(self, completion: object) -> bool:
        style = self.task.style_key(completion) if isinstance(completion, str) else None
        steps = len(self.task._parse(self.prompt)[1])
        return style is not None and len(style) == steps + 2 and completion == self.task.render(self.prompt, style)
