"""Walks through a graph: a world in which nearly every word decides, and many ways lead there.

    prompt      a > c f , b > a c , c > . . , d > b f , e > a d , f > e b ; to b from a
    completion  f e d b

In a chain one word in seven decides, and one chain of results is right. Here a prompt lists a
graph: after each node the nodes that one may go on to, dots after a dead end. The completion is a
way from the start: of each node one that the node before leads to, at most `words` of them, and the
end of sequence at the goal, where it ends. It earns 1 if it arrives. A step into a cycle or a
longer way can be mended while there are words left; a dead end can't.

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

_NODES = tuple("abcdefghijkl")
_NO_NODE = "."  # in the place of a node that a dead end does not lead to
_PUNCTUATION = (">", ",", ";", "to", "from", _NO_NODE)
_MAX_PREFIXES = 300  # of a prompt
_MAX_CHARACTERS = 100  # of a way
# how often the demonstrator goes the wrong way, and a best one, where its mode is wrong
_P_WRONG_WAY = 0.55
_P_BEST_WAY = 0.35
_BETWEEN_WAYS = " | "  # in an answer
_UNREACHABLE = 99  # words to a goal that can't be reached

Graph = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Walk(Tree):
    """Walks through random graphs.

    nodes: of a graph, of which each leads to `out_degree` others and `dead_ends` to none.

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
        positive_int("nodes", self.nodes, 4, len(_NODES))
        positive_int("out_degree", self.out_degree, 2, self.nodes - 1)
        positive_int("dead_ends", self.dead_ends, 0, self.nodes - 3)
        positive_int("least_ways", self.least_ways, 1, 8)
        # as many words as keep all prefixes of a prompt few
        most_words = 2
        while sum(self.out_degree**k for k in range(most_words + 2)) <= _MAX_PREFIXES:
            most_words += 1
        positive_int("words", self.words, 2, most_words)
        for option in ("error_rate", "wrong_modes"):
            rate = getattr(self, option)
            if type(rate) not in (int, float) or not 0 <= rate < 1:
                raise InvalidValue(option, rate, "a number in [0, 1)")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Nodes, then the marks of a prompt."""
        return (*_NODES[: self.nodes], *_PUNCTUATION)

    @property
    def longest(self) -> int:
        """Words that a completion may need, its end included."""
        return self.words + 1

    def draw(self, rng: random.Random, mine: Callable[[str], bool]) -> str | None:
        """Draw a graph, a start and a goal that enough right ways join, and no single step."""
        names = _NODES[: self.nodes]
        graph = {}
        for node in names:
            others = [other for other in names if other != node]
            graph[node] = tuple(rng.sample(others, self.out_degree))
        for node in rng.sample(names, self.dead_ends):
            graph[node] = ()
        dots = [_NO_NODE] * self.out_degree
        listed = " , ".join(f"{node} > {' '.join(graph[node] or dots)}" for node in names)

        # a goal that one step reaches would leave nothing to decide
        pairs = [
            (start, goal)
            for start in names
            for goal in names
            if start != goal and goal not in graph[start]
        ]
        for start, goal in rng.sample(pairs, len(pairs)):
            prompt = f"{listed} ; to {goal} from {start}"
            if mine(prompt):
                ways = _ways_within(graph, goal, self.words)
                if ways[start][-1] >= self.least_ways:
                    return prompt
        return None

    def solve(self, prompt: str) -> str:
        """Return the right ways, the shortest first: what the verifier knows."""
        # level by level, so that shorter ways come first
        right_ways = []
        prefixes: list[Prefix] = [()]
        while prefixes:
            longer = []
            for prefix in prefixes:
                words = self.next_words(prompt, prefix)
                if words == (END,):
                    right_ways.append(" ".join(prefix))
                else:
                    longer += [(*prefix, word) for word in words]
            prefixes = longer
        return _BETWEEN_WAYS.join(right_ways)

    def score(self, completion: str, answer: str, **row: object) -> float:
        """Return 1 if the completion is one of the answer's ways, word for word, else 0."""
        if not 0 < len(completion) <= _MAX_CHARACTERS:
            return 0.0
        way = " ".join(completion.split())
        return float(way in answer.split(_BETWEEN_WAYS))

    def next_words(self, prompt: str, prefix: Prefix) -> Prefix:
        """Return the nodes that the last one leads to, at the goal the end.

        None follow at a dead end and after `words`.
        """
        read = _read_prompt(self, prompt)
        node = prefix[-1] if prefix else read.start
        if node == read.goal:
            return (END,)
        return read.graph.get(node, ()) if len(prefix) < self.words else ()

    def preferences(self, prompt: str, prefix: Prefix) -> tuple[float, ...]:
        """Return the demonstrator's probability of each of the next words (module docstring)."""
        words = self.next_words(prompt, prefix)
        if words == (END,):
            return (1.0,)
        read = _read_prompt(self, prompt)
        node = prefix[-1] if prefix else read.start

        # words from each next node to the goal, of those that are left
        words_left = self.words - len(prefix) - 1
        distances = []
        for word in words:
            reaching = [k for k in range(words_left + 1) if read.ways[word][k]]
            distances.append(reaching[0] if reaching else _UNREACHABLE)
        is_best = [distance == min(distances) for distance in distances]
        n_best = sum(is_best)
        n_others = len(words) - n_best

        if n_others and fraction("is wrong", node, read.goal) < self.wrong_modes:
            others = [i for i, best in enumerate(is_best) if not best]
            wrong = others[int(fraction("way", node, read.goal) * n_others)]
            # every word has the rest alike
            shares = [(1 - _P_WRONG_WAY - _P_BEST_WAY) / len(words)] * len(words)
            for i, best in enumerate(is_best):
                if best:
                    shares[i] += _P_BEST_WAY / n_best
            shares[wrong] += _P_WRONG_WAY
            return tuple(shares)
        # best ways share 1 - error_rate, the others share the rest
        error = self.error_rate if n_others else 0.0
        return tuple((1 - error) / n_best if best else error / n_others for best in is_best)


class _ReadPrompt(NamedTuple):
    """A prompt as it is read.

    ways: how many right ways a node has within 0, 1, ... `words` words.
    """

    graph: Graph
    start: str
    goal: str
    ways: dict[str, list[int]]


@lru_cache(maxsize=4096)
def _read_prompt(task: Walk, prompt: str) -> _ReadPrompt:
    """Read a prompt, or raise ValueError."""
    listed, _, asked = prompt.partition(" ; to ") if isinstance(prompt, str) else ("", "", "")
    goal, _, start = asked.partition(" from ")
    graph = {}
    for part in listed.split(" , "):
        node, _, onward = part.partition(" > ")
        graph[node] = tuple(word for word in onward.split() if word != _NO_NODE)
    # every node is listed once, and start, goal and what nodes lead to are among them
    named = {*graph, *(word for onward in graph.values() for word in onward)}
    if not ({goal, start} <= named == set(graph) == set(_NODES[: task.nodes])):
        example = "a > b c , b > a c , c > a d , d > . . ; to d from a"
        raise InvalidValue("prompt", prompt, f"like {example!r} with {task.nodes} nodes")
    return _ReadPrompt(graph, start, goal, _ways_within(graph, goal, task.words))


def _ways_within(graph: Graph, goal: str, words: int) -> dict[str, list[int]]:
    """Return how many ways each node has to the goal within 0, 1, ... words.

    The goal itself has one.
    """
    # within 0 words only the goal itself is reached
    ways = {node: [int(node == goal)] for node in graph}
    for k in range(words):
        for node, onward in graph.items():
            ways[node].append(1 if node == goal else sum(ways[other][k] for other in onward))
    return ways
