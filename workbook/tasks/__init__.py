"""Tasks by name: prompts, answers and verifying rewards, from the bundled worlds to any data set."""

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbook.places import lazy_names
from workbook.tasks.task import short

if TYPE_CHECKING:
    from workbook.tasks.task import Task

_NAMES = {  # module: what it offers
    "tasks.attack": "attack_reward describe_attack",
    "tasks.chain": "Chain",
    "tasks.own": "BadRows own_task",
    "tasks.task": "Task",
    "tasks.tree": "Tree",
    "tasks.walk": "Walk",
}
_names, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = [*_names, "get_task"]

# How a task's name begins, and what makes it: imported when it is asked for, as reasoning-gym takes seconds
MAKERS = {"chain": "chain.Chain", "walk": "walk.Walk", "gym:": "gym.Gym", "hub:": "hub.Hub", "own:": "own.own_task"}
MAKERS |= {"world:": "worlds.world_task"}


def get_task(name: str, /, **options: Any) -> "Task":
    """Return the task of a name: "chain", "walk", "world:<name>" of data/worlds, "gym:<dataset>" of reasoning-gym,
    "hub:<dataset>" by hub id or local folder, "own:<data file>" by the path of a CSV or JSON-lines file.

    options: for chain the fields of `Chain`, for walk those of `Walk`; for gym those of that data set's config, and
    chat; for hub prompt_column, answer_column, split, subset and chat; for own reward and chat; for world none.
    Raises ValueError in one sentence on any other name or option.

    >>> get_task("chain", operands=3).dataset(1, seed=0).column_names
    ['prompt', 'answer']
    """
    family, colon, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    if family + colon not in MAKERS or bool(colon) != bool(rest):
        raise ValueError(
            f"task is {short(name, 200)}, but must be 'chain', 'walk', 'world:<name>', 'gym:<dataset>', "
            "'hub:<dataset id or local folder>' or 'own:<data file>'."
        )
    module, _, maker_name = MAKERS[family + colon].partition(".")
    maker, args = getattr(import_module(f"workbook.tasks.{module}"), maker_name), (rest,) if rest else ()
    try:
        return maker(*args, **options)
    except TypeError as error:
        known = [*inspect.signature(maker).parameters][len(args) :]
        raise ValueError(f"task {name!r} takes the options {', '.join(known)}: {error}.") from None
