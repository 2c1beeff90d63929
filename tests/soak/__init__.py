"""Long campaigns of hostile trials: seeded, resumable, printing their figures; a sharp sample of each is in the tests.

    make soak                                            every campaign
    make soak ARGS='interrupts --trials 200 --seed 3'    one of them

A campaign is a module of this package with

    PROMISE                      one sentence: what must hold in every trial
    TRIALS                       how many a usual run makes
    trials(seed)                 yields (name, arguments): the trials in order, as many as there are
    attempt(folder, *arguments)  -> None if the promise held, else one sentence that says how it did not

`attempt` gets an empty folder of its own. An exception is a finding; so is the death of the process it runs in.
"""

from __future__ import annotations

from importlib import import_module
from itertools import islice
from pkgutil import iter_modules

ENGINE = ("__main__",)


def campaigns() -> list[str]:
    """Names of the campaigns, which are this package's modules."""
    return sorted(module.name for module in iter_modules(__path__) if module.name not in ENGINE)


def campaign(name: str):
    """The module of a campaign. Raises ValueError for a name that is none."""
    if name not in campaigns():
        raise ValueError(f"{name!r} is no campaign; choose one of {', '.join(campaigns())}.")
    return import_module(f"soak.{name}")


def sample(name: str, n: int, seed: int = 0) -> list[tuple[str, tuple]]:
    """The first n trials of a campaign, for a parametrized test; each is (name, arguments)."""
    return list(islice(campaign(name).trials(seed), n))
