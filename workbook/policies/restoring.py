"""Put back what was changed for a while, even if an interrupt arrives in the middle of changing or of putting back.

An interrupt (Ctrl-C, a notebook's stop button) is an exception that may be raised after any call. `contextlib` and
torch's own managers (`no_grad`, `fork_rng`) are then cut in two: grad mode switched off before the `with` has begun, a
loop that restores weights left half-way. A manager made by `restoring` is not:

    @restoring
    def evaluating(model):
        training = [module for module in model.modules() if module.training]
        try:
            model.eval()
            yield model
        finally:
            for module in training:
                module.training = True

    with evaluating(model):
        ...

An interrupt in the body of the `with` is raised at once; one that arrives in the code before or after `yield` (or in
anything that this code calls, another manager included) is raised when that code has ended and all is put back.
"""

from __future__ import annotations

import copy
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType, FrameType

import torch
from torch import nn


class _InterruptHandler:
    """SIGINT's handler while a manager is open in the main thread, the only one that Python interrupts.

    It stands in front of the handler that it found, and holds an interrupt back while a manager's own code runs.
    """

    def __init__(self):
        self.deferring: set[CodeType] = set()
        self.previous, self.waiting = None, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.defers(frame):
            self.waiting = True
        else:
            self.previous(number, frame)

    def defers(self, frame: FrameType | None) -> bool:
        """Return whether the frame, or one that it was called from, is a manager's own code."""
        while frame is not None and frame.f_code not in self.deferring:
            frame = frame.f_back
        return frame is not None

    def install(self) -> bool:
        """Return whether it was put in place: it may be there, and interrupts may be ignored or end the process."""
        current = signal.getsignal(signal.SIGINT)
        if current is self or not callable(current):
            return False
        self.previous, self.waiting = current, False
        signal.signal(signal.SIGINT, self)
        return True

    def remove(self) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is self:
            signal.signal(signal.SIGINT, self.previous)

    def deliver(self, frame: FrameType | None) -> None:
        """Raise the interrupt that waits, unless the frame's code defers it in turn."""
        if self.waiting and not self.defers(frame):
            self.waiting = False
            self.previous(signal.SIGINT, frame)


_HANDLER = _InterruptHandler()


class _Manager:
    """A context manager made of a generator: what stands before its `yield` is done, and what stands behind it, always.

    Grad mode is put back too, since an interrupt may fall into torch's own switching of it anywhere in the body.
    """

    def __init__(self, generator: Iterator):
        self.generator, self.is_open, self.installed = generator, False, False

    def __enter__(self):
        self.in_main_thread = threading.current_thread() is threading.main_thread()
        self.gradients = torch.is_grad_enabled()
        self.is_open = True
        try:
            if self.in_main_thread:
                self.installed = _HANDLER.install()
            value = next(self.generator)
        except BaseException:
            self._close()
            raise
        if self.in_main_thread and _HANDLER.waiting and not _HANDLER.defers(sys._getframe(1)):
            self._close()
            _HANDLER.deliver(sys._getframe(1))
        return value

    def __exit__(self, *_) -> None:
        self._close()
        if self.in_main_thread:
            _HANDLER.deliver(sys._getframe(1))

    def __del__(self):
        self._close()  # of a `with` that was cut off before it could call __exit__

    def _close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if threading.current_thread() is threading.main_thread() and _HANDLER.install():
            self.installed = True  # whoever had installed it has left, or another handler has been set since
        try:
            self.generator.close()
        finally:
            torch.set_grad_enabled(self.gradients)
            if self.installed:
                _HANDLER.remove()


_HANDLER.deferring |= {f.__code__ for f in (_Manager.__enter__, _Manager.__exit__, _Manager.__del__, _Manager._close)}


def restoring(function: Callable[..., Iterator]) -> Callable[..., _Manager]:
    """Make a context manager of a generator function that yields once, as `contextlib.contextmanager` does.

    Its code runs with interrupts deferred, before the `yield` and after. An exception in the body of the `with` reaches
    it as GeneratorExit, so that what must be put back belongs into a `finally`, and what is changed into its `try`.
    """
    _HANDLER.deferring.add(function.__code__)

    @functools.wraps(function)
    def manager(*args, **kwargs) -> _Manager:
        return _Manager(function(*args, **kwargs))

    return manager


@restoring
def no_gradients() -> Iterator[None]:
    """Do without gradients inside the block, as `torch.no_grad`, whose own switch an interrupt may leave on."""
    with torch.no_grad():
        yield


@restoring
def gradients() -> Iterator[None]:
    """Record gradients inside the block, as `torch.enable_grad`."""
    with torch.enable_grad():
        yield


@restoring
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators inside the block (the CPU's and the device's); afterwards they are as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@restoring
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Eval mode inside the block; afterwards every submodule is in the mode it was in.

    Rotary embeddings that depend on the longest sequence so far (dynamic, longrope) forget those of the block.
    """
    training = [module for module in model.modules() if module.training]
    rotary = [module for module in model.modules() if _varies_with_length(module)]
    attributes = [dict(vars(module)) for module in rotary]
    buffers = [(module, dict(module._buffers), {n: b.clone() for n, b in module._buffers.items()}) for module in rotary]
    try:
        model.eval()
        yield model
    finally:
        for module in training:
            module.training = True
        for module, before in zip(rotary, attributes, strict=True):
            vars(module).update(before)
        for module, tensors, values in buffers:
            module._buffers = tensors
            for name, tensor in tensors.items():
                tensor.data.copy_(values[name])


COPIED = 300_000_000  # parameters; a second copy of what is larger is more than a laptop has room for


def private_copy(policy):
    """A copy of a policy that a thread may step while cells use the original; a policy of COPIED and more is shared."""
    if sum(p.numel() for p in policy.model.parameters()) > COPIED:
        return policy
    return replace(policy, model=copy.deepcopy(policy.model))


def _varies_with_length(module: nn.Module) -> bool:
    """Return whether a module is a rotary embedding whose frequencies transformers changes during a forward pass."""
    kinds = vars(module).get("rope_type")
    kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any("dynamic" in kind or kind == "longrope" for kind in kinds if isinstance(kind, str))
