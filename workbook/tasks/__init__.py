"""Tasks: prompts, answers and rewards that verify; `get_task` by name.

They range from worlds in which every token's credit is known to any data set.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "tasks.attack": "attack_reward describe_attack",
    "tasks.chain": "Chain",
    "tasks.own": "BadRows own_task",
    "tasks.task": "Task get_task",
    "tasks.tree": "Tree",
    "tasks.walk": "Walk",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
