"""One thread for small tensors: more of them cost a slider more than they save, above all on a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch


def single_thread(function: Callable) -> Callable:
    """Run `function` with one thread of torch's, and give it back its threads afterwards.

    >>> before = torch.get_num_threads()
    >>> single_thread(torch.get_num_threads)(), torch.get_num_threads() == before
    (1, True)
    """

    @wraps(function)
    def wrapped(*args, **kwargs):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return wrapped
