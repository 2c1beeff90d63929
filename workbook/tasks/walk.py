"""Walks through a graph: a world in which nearly every word decides, and many ways lead to the
goal.

    prompt      a > c f , b > a c , c > . . , d > b f , e > a d , f > e b ; to b from a
    completion  f e d b

Each prompt lists a graph: after each node the nodes that one may go on to, dots after a dead end.
The completion is a way from the start: of each node one that the node before leads to, at most
`words` of them, and the end of sequence at the goal, where it ends. It earns 1 if it arrives. A
step into a cycle or a longer way can be mended while there are words left; a dead end can't.

The *demonstrator* goes on to a node that is nearest to the goal with probability 1 - `error_rate`,
else to another one. At a share `wrong_modes` of the pairs of node and goal, by a fixed hash, it
goes a way that isn't best with probability .55 and a best one with .35. So a policy that learned
from it is wrong there where it is most sure.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from workbook.messages import InvalidValue
from workbook.tasks.task import positive_int
from workbook.tasks.tree import END, Prefix, Tree, fraction

NODES = tuple("abcdefghijkl")
NONE = "."  # in the place of a node that a dead end does not lead to
MARKS = (">", ",", ";", "to", "from", NONE)
MAX_PREFIXES = 300  # of a prompt
MAX_TEXT = 100  # characters of a way
# how often the demonstrator goes the wrong way, and a best one, where its mode is wrong
WRONG, RIGHT = 0.55, 0.35
BETWEEN = " | "  # the right ways in an answer
NEVER = 99  # words to a goal that can't be reached

Graph = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Walk(Tree):
    """Walks through graphs of `nodes` nodes, of which each leads to `out_degree` others and
    `dead_ends` to none.

    words: how many nodes a way may have after the start.  error_rate, wrong_modes: of the
    demonstrator.
    least_ways: how many right ways a prompt has at least.

    Raises ValueError naming the field unless 4 <= nodes <= 12, 2 <= out_degree < nodes, 2 <= words,
    0 <= dead_ends <= nodes - 3, 1 <= least_ways <= 8, a prompt has at most 300 prefixes, and both
    rates are in [0, 1).

    >>> task = Walk(nodes=4, dead_ends=1)
    >>> prompt = "a > b c , b > a c , c > a d , d > . . ; to d from a"
    >>> task.render(prompt), task.reward([prompt], ["b c d"], [task.solve(prompt)])
    ('c d', [1.0])
    """

    nodes: int = 8
    out_degree: int = 2
    words: int = 5
    dead_ends: int = 2
    least_ways: int = 4
    error_rate: float = 0.35
    wrong_modes: float = 0.0
    name: str = field(default="walk", init=False)

    def __post_init__(self) -> None:
        positive_int("nodes", self.nodes, 4, len(NODES))
        positive_int("out_degree", self.out_degree, 2, self.nodes - 1)
        positive_int("dead_ends", self.dead_ends, 0, self.nodes - 3)
        positive_int("least_ways", self.least_ways, 1, 8)
        most = 2
        while sum(self.out_degree**k for k in range(most + 2)) <= MAX_PREFIXES:
            most += 1
        positive_int("words", self.words, 2, most)
        for option in ("error_rate", "wrong_modes"):
            if not (type(rate := getattr(self, option)) in (int, float) and 0 <= rate < 1):
                raise InvalidValue(option, rate, "a number in [0, 1)")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Nodes, then the marks of a prompt."""
        return (*NODES[: self.nodes], *MARKS)

    @property
    def longest(self) -> int:
        """Words that a completion may need, its end included."""
        return self.words + 1

    def draw(self, rng: random.Random, mine: Callable[[str], bool]) -> str | None:
        """Draw a graph, and of it a start and a goal that enough right ways join, and no single
        step.
        """
        names = NODES[: self.nodes]
        graph = {
            node: tuple(rng.sample([n for n in names if n != node], self.out_degree))
            for node in names
        }
        graph |= dict.fromkeys(rng.sample(names, self.dead_ends), ())
        listed = " , ".join(
            f"{a} > {' '.join(graph[a] or [NONE] * self.out_degree)}" for a in names
        )
        pairs = [
            (start, goal)
            for start in names
            for goal in names
            if start != goal and goal not in graph[start]
        ]
        for start, goal in rng.sample(pairs, len(pairs)):
            prompt = f"{listed} ; to {goal} from {start}"
            if mine(prompt) and _ways_within(graph, goal, self.words)[start][-1] >= self.least_ways:
                return prompt
        return None

    def solve(self, prompt: str) -> str:
        """Return the right ways, the shortest first: what the verifier knows."""
        found: list[Prefix] = [()]
        for prefix in found:
            found += [(*prefix, word) for word in self.next_words(prompt, prefix) if word != END]
        return BETWEEN.join(
            " ".join(prefix) for prefix in found if self.next_words(prompt, prefix) == (END,)
        )

    def score(self, completion: str, answer: str, **row: object) -> float:
        """Return 1 if the completion is one of the answer's ways, word for word, else 0."""
        return float(
            0 < len(completion) <= MAX_TEXT
            and " ".join(completion.split()) in answer.split(BETWEEN)
        )

    def next_words(self, prompt: str, prefix: Prefix) -> Prefix:
        """Return the nodes that the last one leads to, at the goal the end; none at a dead end and
        after `words`.
        """
        map_ = _read(self, prompt)
        node = prefix[-1] if prefix else map_.start
        if node == map_.goal:
            return (END,)
        return map_.graph.get(node, ()) if len(prefix) < self.words else ()

    def preferences(self, prompt: str, prefix: Prefix) -> tuple[float, ...]:
        """Return the demonstrator's probability of each of the next words, as the module's head
        says.
        """
        words, map_ = self.next_words(prompt, prefix), _read(self, prompt)
        words_left, node = self.words - len(prefix) - 1, prefix[-1] if prefix else map_.start
        if words == (END,):
            return (1.0,)
        steps = [
            next((k for k in range(words_left + 1) if map_.ways[word][k]), NEVER) for word in words
        ]
        best = [number == min(steps) for number in steps]
        others = len(words) - sum(best)
        if others and fraction("is wrong", node, map_.goal) < self.wrong_modes:
            chosen = [i for i, is_best in enumerate(best) if not is_best][
                int(fraction("way", node, map_.goal) * others)
            ]
            rest = (1 - WRONG - RIGHT) / len(words)
            return tuple(
                rest + (RIGHT / sum(best) if b else WRONG * (i == chosen))
                for i, b in enumerate(best)
            )
        error = self.error_rate if others else 0.0
        return tuple((1 - error) / sum(best) if is_best else error / others for is_best in best)


class Map(NamedTuple):
    """A prompt as it is read; ways: how many right ways a node has in 0, 1, ... `words` words."""

    graph: Graph
    start: str
    goal: str
    ways: dict[str, list[int]]


@lru_cache(maxsize=4096)
def _read(task: Walk, prompt: str) -> Map:
    listed, _, asked = prompt.partition(" ; to ") if isinstance(prompt, str) else ("", "", "")
    nodes = {
        node: tuple(onward.split())
        for node, _, onward in (part.partition(" > ") for part in listed.split(" , "))
    }
    goal, _, start = asked.partition(" from ")
    named = {*nodes, *(word for onward in nodes.values() for word in onward if word != NONE)}
    if not ({goal, start} <= named == set(nodes) == set(NODES[: task.nodes])):
        example = "a > b c , b > a c , c > a d , d > . . ; to d from a"
        raise InvalidValue("prompt", prompt, f"like {example!r} with {task.nodes} nodes")
    graph = {node: tuple(word for word in onward if word != NONE) for node, onward in nodes.items()}
    return Map(graph, start, goal, _ways_within(graph, goal, task.words))


def _ways_within(graph: Graph, goal: str, words: int) -> dict[str, list[int]]:
    """How many ways each node has to the goal within 0, 1, ... words; the goal itself has one."""
    ways = {node: [int(node == goal)] for node in graph}
    for k in range(words):
        for node, onward in graph.items():
            ways[node].append(1 if node == goal else sum(ways[other][k] for other in onward))
    return ways
