"""Exercises of chapters 03 and 04: weights that cancel, clipping, transforms, positive-only, and missing controls."""

from __future__ import annotations

import torch

from workbook.theory import cancellation_residual, group_advantages, surrogate_weights
from workbook.topics.exchange.drift import run_solutions, solution_measures
from workbook.topics.exchange.shared import GROUPS, TRANSFORMS, draw_groups, residuals, shared_weights, transformed
from workbook.topics.grading import UNANSWERED, answer_of, grade

ADVANTAGES = (1.5, -0.5, -0.5, -0.5)


def check_unequal_weights(weights: list | None) -> None:
    """Check four positive weights, not all equal, under which the advantages 1.5, -0.5, -0.5, -0.5 still cancel.

    >>> check_unequal_weights([1, 1, 1, 1])
    Not quite: these cancel, but they are all equal, which cancels for every group. Find unequal ones.
    >>> check_unequal_weights([1, 2, 3, 4])
    Not quite: the pushes are +1.5, -1, -1.5, -2, and their sum is -3 instead of 0.
    """
    if weights is None:
        print(UNANSWERED)
        return
    try:
        w = torch.as_tensor(weights, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        print(f"Not quite: four numbers are needed; {error}")
        return
    advantages, group = torch.tensor(ADVANTAGES, dtype=torch.float64), torch.zeros(4)
    if w.shape != (4,):
        print(f"Not quite: the shape is {tuple(w.shape)}; give one weight for each of the four rollouts.")
    elif not (w > 0).all() or not w.isfinite().all():
        print("Not quite: a weight of 0 drops a rollout, a negative one reverses it; all four must be positive.")
    elif float(cancellation_residual(w, advantages, group)) > 1e-6:
        pushes = w * advantages
        listed = ", ".join(f"{push:+g}" for push in pushes.tolist())
        print(f"Not quite: the pushes are {listed}, and their sum is {pushes.sum():g} instead of 0.")
    elif float(w.max() - w.min()) <= 1e-6 * float(w.max()):
        print("Not quite: these cancel, but they are all equal, which cancels for every group. Find unequal ones.")
    else:
        residual = float(cancellation_residual(w, advantages.roll(1), group))
        print(f"Right: unequal, and they cancel. Were the second answer right, the residual would be {residual:.0%}.")


def check_symmetric_clip(function) -> None:
    """Check symmetric clipping: (ratios (B,), advantages (B,), low, high) -> weights (B,), as `surrogate_weights`.

    >>> check_symmetric_clip(lambda ratios, advantages, low, high: ratios.clamp(low, high))
    Not quite: you clamp the ratio, but a clamped surrogate has no gradient: the weight there is 0.
    """
    ratios = torch.tensor([0.5, 0.5, 0.9, 1.1, 1.5, 1.5], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1, 1, -1, 1, -1], dtype=torch.float64)
    low, high = 0.8, 1.2
    columns = (ratios.log()[:, None], torch.zeros(6, 1, dtype=torch.float64), torch.ones(6, 1), advantages)
    right, ppo = (
        surrogate_weights(*columns, clip=(1 - low, high - 1), clipping=clipping)[:, 0]
        for clipping in ("symmetric", "asymmetric")
    )
    mistakes = {
        "you clamp the ratio, but a clamped surrogate has no gradient: the weight there is 0.": ratios.clamp(low, high),
        "this is PPO's clipping, which looks at the sign of the advantage; symmetric clipping does not.": ppo,
        "inside the range the weight is the ratio itself, not 1.": right > 0,
        "this is the push; the weight comes without the advantage.": right * advantages,
    }
    grade(
        answer_of(function, ratios.clone(), advantages.clone(), low, high),
        right,
        mistakes,
        "Right: equal ratios get equal weights, whatever the advantage's sign, so the shared token cancels.",
        "ratio",
        otherwise=f"ratio {{place[0]}} of {ratios.tolist()} should get the weight {{right:g}}; yours is {{got:g}}.",
    )


def check_transforms(answer: dict | None) -> None:
    """Check which of TRANSFORMS fits three situations, by trying the reader's choices on the toy.

    >>> check_transforms({"masked": "min-replace", "clipped": None, "favoured": None})
    masked: not quite: min-replace leaves a residual of 0.20: equal weights fail where rollouts are missing.
    clipped: not answered yet.
    favoured: not answered yet.
    """
    judges = {"masked": _masked, "clipped": _clipped, "favoured": _favoured}
    if not isinstance(answer, dict) or not any(answer.get(name) for name in judges):
        print(UNANSWERED)
        return
    marks = []
    for name, judge in judges.items():
        choice = answer.get(name)
        if choice is None:
            print(f"{name}: not answered yet.")
        elif choice not in TRANSFORMS:
            print(f"{name}: {choice!r} is no transform; valid are {', '.join(TRANSFORMS)}.")
        else:
            right, effect = judge(choice)
            marks.append(right)
            print(f"{name}: {'right' if right else 'not quite'}: {choice} {effect}.")
    if len(marks) == len(judges) and all(marks):
        print("Right: all three. No repair fits all, because they equalize different things.")


def _masked(choice: str) -> tuple[bool, str]:
    residual = float(residuals(draw_groups(), choice, masking=True)[0].mean())
    right = residual < 1e-9
    why = "it projects over the rollouts that remain" if right else "equal weights fail where rollouts are missing"
    return right, f"leaves a residual of {residual:.2f}: {why}"


def _clipped(choice: str) -> tuple[bool, str]:
    draw = draw_groups()
    weights = transformed(choice, *shared_weights(draw, "sequence", "asymmetric", columns=2), draw)
    residual = float(cancellation_residual(weights[:, 0], draw.advantages, draw.group_ids).mean())
    silent = float((weights[:, 1].view(GROUPS, -1) == 0).all(1).double().mean())
    return (
        residual < 1e-9 and silent < 0.01,
        f"leaves a residual of {residual:.2f} and silences {silent:.0%} of groups",
    )


def _favoured(choice: str) -> tuple[bool, str]:
    chosen, equal = (
        float(solution_measures(run_solutions(*weights, lr=0.3))["log-odds"][-1].mean())
        for weights in (("one favoured", choice), ("equal", "none"))
    )
    return abs(chosen - equal) < 1e-9, f"moves the log-odds by {chosen:+.2f}, equal weights by {equal:+.2f}"


def check_positive_only(function) -> None:
    """Check a function (rewards (B,), group_ids (B,)) -> GRPO's advantages with the negative ones left out.

    >>> check_positive_only(lambda rewards, group_ids: rewards)
    Not quite: without a baseline a group whose answers are all right still pushes; GRPO gives it advantages of 0.
    """
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1])
    group_ids = torch.arange(12) // 4
    right, grpo, centred = (group_advantages(rewards, group_ids, name) for name in ("positive_only", "grpo", "dr_grpo"))
    mistakes = {
        "without a baseline a group whose answers are all right still pushes; GRPO gives it advantages of 0.": rewards,
        "the negative advantages are still there; set them to 0.": grpo,
        "this keeps the negative ones and drops the positive ones.": grpo.clamp(max=0),
        "this turns negative pushes into positive ones; they must be left out.": grpo.abs(),
        "GRPO also divides by the group's standard deviation.": centred.clamp(min=0),
        "the negative advantages are still there, and GRPO divides by the group's standard deviation.": centred,
    }
    one, before, after = torch.zeros(4), grpo[:4], right[:4]
    residuals_of = [float(cancellation_residual(torch.ones(4), a, one)) for a in (before, after)]
    praise = (
        "Right: every push that is left has one sign, so a word that all four share keeps all of them: a residual of "
        f"{residuals_of[1]:.0f} instead of {residuals_of[0]:.0f}."
    )
    grade(answer_of(function, rewards, group_ids), right, mistakes, praise, "rollout")
