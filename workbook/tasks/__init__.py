"""Tasks by name: prompts, answers and verifying rewards, from the bundled chain to any data set."""

import inspect
from typing import Any

from workbook.tasks.chain import Chain
from workbook.tasks.own import own_task
from workbook.tasks.task import Task, short

__all__ = ["Chain", "Task", "get_task", "own_task"]


def get_task(name: str, /, **options: Any) -> Task:
    """Return the task of a name: "chain", "gym:<dataset>" of reasoning-gym, "hub:<dataset>" by hub id or local folder,
    "own:<data file>" by the path of a CSV or JSON-lines file.

    options: for chain operands, error_rate, modulus; for gym the fields of that data set's config and chat; for hub
    prompt_column, answer_column, split, subset and chat; for own reward, chat and seconds. Raises ValueError in one
    sentence on any other name or option.

    >>> get_task("chain", operands=3).dataset(1, seed=0).column_names
    ['prompt', 'answer']
    """
    family, _, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    if name == "chain":
        makers, args = Chain, ()
    elif family == "gym" and rest:
        from workbook.tasks.gym import Gym as makers  # imported late: reasoning-gym takes seconds

        args = (rest,)
    elif family == "hub" and rest:
        from workbook.tasks.hub import Hub as makers

        args = (rest,)
    elif family == "own" and rest:
        makers, args = own_task, (rest,)
    else:
        raise ValueError(
            f"task is {short(name, 200)}, but must be 'chain', 'gym:<dataset>', 'hub:<dataset id or local folder>' or "
            "'own:<data file>'."
        )
    parameters = list(inspect.signature(makers).parameters.values())[len(args) :]
    known = [parameter.name for parameter in parameters]
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    if not open_ended and (unknown := [option for option in options if option not in known]):
        raise ValueError(f"task {name!r} has no option {short(unknown[0])}; its options are {', '.join(known)}.")
    try:
        return makers(*args, **options)
    except TypeError as error:
        raise ValueError(f"task {name!r} does not take these options: {error}.") from None
