"""Credit rules in training: a name, a file's function or a function at hand, called with all that can go wrong bounded.

    advantage_estimator: edit_mask                  one of `theory.credit_rules.CREDIT_RULES`
    advantage_estimator: own:credit.py:my_rule      a function of one's own file, with what that imports from beside it
    CancellationTrainer(..., advantage_estimator=my_rule)

A rule works on tensors, so it runs in this process, in a thread that is waited for so long and no longer. What a thread
cannot stop: a call that hangs goes on until the process ends, and so does what it has started; one that crashes the
interpreter, or takes all memory, takes the run with it. A rule of one's own may carry attributes: `each_step = True`
(it is evaluated again in every micro-batch), `seconds = 900` (the most that one call may take).
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workbook.policies.restoring import no_gradients, restoring, seeded
from workbook.tasks.inputs import error_line, function_file, load_function
from workbook.theory.choices import ESTIMATORS, OWN, RULES, check_estimator
from workbook.theory.credit import CreditBatch, Rule
from workbook.theory.credit_rules import CREDIT_RULES
from workbook.training.messages import show_value

OF_POLICY = ("old_logps", "logps", "entropies", "states", "continue_from")  # what takes a pass through the policy
CALL_SECONDS = 300.0  # for a rule of one's own that does not say how long it may take


class CreditCall:
    """A credit rule that answers with advantages, or a ValueError of one sentence.

    name: as in `advantage_estimator`.  files: SHA-256 of what a rule of one's own is made of.  each_step: whether it is
    evaluated again in every micro-batch.  per_token: whether its advantages may be (B, T).  needs: names of
    OF_POLICY that it may ask for.  own: whether it is no rule of ours.
    """

    def __init__(self, name: str, function: Rule, files: dict[str, str] | None = None, path: Path | None = None):
        known = CREDIT_RULES.get(name)
        self.name, self.function, self.files, self.path = name, function, files or {}, path
        self.own, self.each_step = known is None, getattr(function, "each_step", False)
        self.per_token = known is None or known.per_token
        self.needs = tuple(need for need in OF_POLICY if known is None or need in known.needs)
        self.seconds = getattr(function, "seconds", CALL_SECONDS) if self.own else None
        if not isinstance(self.each_step, bool):
            raise ValueError(f"{self}: its attribute each_step is {show_value(self.each_step)}, not True or False.")
        if self.own and not _is_time(self.seconds):
            most = f"a number above 0 and at most {threading.TIMEOUT_MAX:.0e}"
            raise ValueError(f"{self}: its attribute seconds is {show_value(self.seconds)}, which must be {most}.")

    def __str__(self) -> str:
        return f"The credit rule {self.name}"

    def __call__(self, batch: CreditBatch) -> Tensor:
        """Advantages (B,) or (B, T) of a batch, in the rewards' dtype, 0 outside the mask.

        Global random generators are as they were afterwards, and seeded from the batch's during the call.
        """
        device = batch.rewards.device
        asked = CreditBatch(
            batch.rewards, batch.group_ids, batch.completion_ids, batch.mask.clone()
        )  # whatever it changes
        with _own_randomness(batch.generator.initial_seed(), device):
            outcome = _in_time(partial(_without_gradients, self.function, batch, device), self.seconds)
        if outcome is None:
            more = "give it an attribute seconds to allow for more"
            raise ValueError(f"{self} took longer than {self.seconds:g} s; {more}.")
        value, error = outcome
        if error is not None:
            raise ValueError(f"{self} raised {error_line(error, self.path)}.") from error
        return checked_credit(value, asked, str(self))


def credit_call(estimator: str | Rule) -> CreditCall | None:
    """The rule that an `advantage_estimator` means, imported; None for a plain estimator, which needs no batch.

    Raises ValueError, in one sentence, for a name that is unknown, a file that can't be imported in time, a function
    that is not there, and one that can't be called with one argument.
    """
    if not isinstance(estimator, str):
        return _callable(estimator)
    check_estimator(estimator)
    if estimator in ESTIMATORS:
        return None
    if estimator in RULES:
        return CreditCall(estimator, CREDIT_RULES[estimator].function)
    match = OWN.fullmatch(estimator)
    named = f"{match['file']}:{match['function']}"
    path = function_file(named, "credit")[0]
    with _own_randomness(0, torch.device("cpu")):  # whatever the file seeds
        function = load_function(named, "credit")
    _check_signature(function, estimator)
    files = {"credit rule " + file.relative_to(path.parent).as_posix(): _sha256(file) for file in _files(path)}
    return CreditCall(estimator, function, files, path)


def own_files(estimator: str) -> dict[str, Path]:
    """The file of an `own:` rule and those beside it that it imports, by their names in its folder."""
    path = credit_call(estimator).path
    return {file.relative_to(path.parent).as_posix(): file for file in _files(path)}


def checked_credit(value, batch: CreditBatch, rule: str = "The credit rule") -> Tensor:
    """What a rule returned as advantages (B,) or (B, T) in the rewards' dtype, 0 outside the mask.

    A list or an array counts as the tensor that it makes. Raises ValueError, in one sentence that says what came and
    what would be valid, for anything else, another shape, a gradient, and a number inside the mask that is not finite.

    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.tensor([[5, 1], [5, 2]]), torch.ones(2, 2))
    >>> checked_credit([0.5, -0.5], batch)
    tensor([ 0.5000, -0.5000])
    >>> checked_credit(torch.ones(2, 3), batch)
    Traceback (most recent call last):
    ValueError: The credit rule returned the shape (2, 3); it must be (2,), one per rollout, or (2, 2), one per token.
    """
    shapes = f"{tuple(batch.rewards.shape)}, one per rollout, or {tuple(batch.mask.shape)}, one per token"
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value)
        except Exception:  # of what is no array of numbers
            kind = "None" if value is None else f"a {type(value).__name__}"
            hint = "does it lack a return?" if value is None else f"return a tensor {shapes}."
            raise ValueError(f"{rule} returned {kind}; {hint}") from None
    kinds = {"nested": value.is_nested, "sparse": value.layout != torch.strided}
    kinds |= {"quantized": value.is_quantized, "meta": value.is_meta}
    if odd := [kind for kind, so in kinds.items() if so]:
        raise ValueError(f"{rule} returned a {odd[0]} tensor; return a dense one, {shapes}.")
    if value.shape not in (batch.rewards.shape, batch.mask.shape):
        raise ValueError(f"{rule} returned the shape {tuple(value.shape)}; it must be {shapes}.")
    if value.dtype == torch.bool or value.is_complex():
        raise ValueError(f"{rule} returned {str(value.dtype).removeprefix('torch.')} numbers; they must be floats.")
    if value.requires_grad:
        raise ValueError(f"{rule} returned a tensor with a gradient; advantages are constants, so detach() it.")
    value = value.detach().to(device=batch.rewards.device, dtype=batch.rewards.dtype)
    if value.ndim == 2:
        value = value.masked_fill(~batch.mask, 0.0)
    bad = (~value.isfinite()).nonzero()
    if len(bad):
        place = ", position ".join(map(str, bad[0].tolist()))
        number = float(value[tuple(bad[0])])
        raise ValueError(f"{rule} gave {number} to rollout {place}; every advantage must be a finite number.")
    return value.clone()


def _callable(function: Rule) -> CreditCall:
    if not callable(function):
        raise ValueError(f"advantage_estimator={show_value(function)} must be a function of one CreditBatch.")
    name = f"own:{getattr(function, '__name__', type(function).__name__)}"
    _check_signature(function, name)
    return CreditCall(name, function, {}, _source(function))


def _check_signature(function: Callable, name: str) -> None:
    """Raise a ValueError unless a function can be called with one argument, and answers at once."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        kind = "an async function" if inspect.iscoroutinefunction(function) else "a generator"
        raise ValueError(f"The credit rule {name} is {kind}; it must be a plain function that returns a tensor.")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ValueError(f"The credit rule {name} can't be called with one argument, the batch: {error}.") from None
    except ValueError:  # a builtin, which does not say what it takes
        return


def _is_time(seconds) -> bool:
    """Whether a thread can be waited for as long as that."""
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= threading.TIMEOUT_MAX


def _source(function: Callable) -> Path | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Path(code.co_filename) if code else None


def _in_time(call: Callable[[], tuple], seconds: float | None) -> tuple | None:
    """What a call gives, None if it does not in time; seconds None waits for ever."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def _caught(function: Callable, *args) -> tuple:
    """(what a function returned, None), or (None, what it raised)."""
    try:
        return function(*args), None
    except BaseException as error:  # an exit, too, is the function's own
        return None, error


def _without_gradients(function: Callable, batch: CreditBatch, device: torch.device) -> tuple:
    """`_caught` with the modes that each thread has for itself."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with no_gradients():
        return _caught(function, batch)


@restoring
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's generators inside the block; afterwards they are as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        with seeded(seed, device):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _beside(path: Path) -> dict[str, Path]:
    """Loaded modules that a file imports, and these in turn, whose files lie in its folder: the reader's own."""
    own, pending = {}, [(f"own_{path.stem}", path)]
    while pending:
        for name in _imported(*pending.pop()):
            file = getattr(sys.modules.get(name), "__file__", None)
            file = Path(file).resolve() if isinstance(file, str) and file.endswith(".py") else None
            if file is None or name in own or not file.is_relative_to(path.parent) or file == path:
                continue
            if not {"site-packages", "dist-packages", "lib"} & set(file.relative_to(path.parent).parts):
                own[name] = file
                pending.append((name, file))
    return own


def _files(path: Path) -> list[Path]:
    return [path, *sorted(set(_beside(path).values()))]


def _imported(module: str, path: Path) -> set[str]:
    """Names of the modules that a module's file may import, but for this package's own; none where it is no Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return set()
    names, package = set(), module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            names |= {source} | {f"{source}.{alias.name}" for alias in node.names}
    parents = {name.rpartition(".")[0] for name in names} - {""}
    return {name for name in names | parents if name.partition(".")[0] != __name__.partition(".")[0]}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


PLAIN = {  # estimators of `theory.advantages`: summary, source
    "grpo": ("reward minus its group's mean, over the group's standard deviation", "arXiv 2402.03300, as published"),
    "dr_grpo": ("reward minus its group's mean", "arXiv 2503.20783, as published"),
    "rloo": ("reward minus the mean of the group's other rewards", "arXiv 2402.14740, as published"),
    "reinforce": ("reward minus the mean of the whole batch, 0 in groups of equal rewards", "control"),
    "positive_only": ("grpo's where it is positive, else 0", "arXiv 2506.01347, our reading"),
    "negative_only": ("grpo's where it is negative, else 0", "arXiv 2506.01347, our reading"),
}
HOW_TO = """
One of your own: a file credit.py with `def my_rule(batch): return batch.group_advantages()[:, None] * batch.entropies`,
then advantage_estimator: own:credit.py:my_rule. `batch` is a workbook.theory.CreditBatch; the rule returns (B,), one
number per rollout, or (B, T), one per token. With my_rule.each_step = True it is called anew in every micro-batch.
At hand: rewards, group_ids (B,), completion_ids, mask (B, T), step, generator, groups(), group_advantages(NAME); made
when first asked for: old_logps, logps, entropies, known_credit (B, T), tokens, prompts, states, continue_from(rows,
prefixes). help(workbook.theory.CreditBatch) says what each is.
To try one without training: workbook.rollouts.credit_batch(policy, rollouts, task) makes such a batch."""


def estimators_text() -> str:
    """Every advantage estimator and credit rule in one line: name, one number per what, needs, summary, source."""
    rows = [(name, "rollout", *words) for name, words in PLAIN.items()]
    for rule in CREDIT_RULES.values():
        asks = f"; asks for {', '.join(rule.needs)}" * bool(rule.needs)
        unit = "token" if rule.per_token else "rollout"
        rows.append((rule.name, unit, rule.summary + asks, f"{rule.source}, {rule.exact}"))
    width = max(len(name) for name, *_ in rows)
    lines = [f"{name:{width}}  per {unit:7}  {summary} [{source}]" for name, unit, summary, source in rows]
    return "\n".join([*lines, HOW_TO])
