"""Explorers and exercises of chapters 03 and 04: weights that cancel, transforms, the push of one
token, the KL penalty, drift.
"""

import ipywidgets
import torch

from workbook.chapters.exchange import charts
from workbook.chapters.exchange.charts import MEASURES, RUNS
from workbook.chapters.exchange.drift import (
    OPERATORS,
    PATHS,
    STEPS,
    WEIGHTS,
    compute_kl_drift,
    compute_solutions,
)
from workbook.chapters.exchange.objectives import (
    OBJECTIVES,
    SITUATIONS,
    compute_formula,
    compute_reference_pull,
    token_names,
)
from workbook.chapters.exchange.toy import TOGETHER, TRANSFORMS, compute_exchange
from workbook.chapters.grading import answer_of
from workbook.theory import cancellation_residual
from workbook.views.explorer import Explorer, log_slider, menu, slider, switch

_CLIPPINGS = ["none", "symmetric", "asymmetric"]
_ADVANTAGES = (1.5, -0.5, -0.5, -0.5)


def explore_exchange() -> Explorer:
    """Every mechanism as a switch, its strength as a slider, on one residual meter."""

    def describe(meter, pushes) -> str:
        last = meter.set_index("mechanism").loc[TOGETHER]
        residual = (
            f"a residual of {last['mean']:.3f} [{last['low']:.3f}, {last['high']:.3f}] on the"
            " shared token"
        )
        return (
            f"Switched on together: {residual}; in {last['silent']:.0%} of groups nothing"
            " pushes it."
        )

    controls = {
        "sequence": switch(True, "sequence ratio (GSPO)"),
        "drift": slider(0.04, 0.0, 1.0, 0.02, "ratio drift"),
        "clipping": menu("none", _CLIPPINGS, "clipping"),
        "clip_range": slider(0.2, 0.01, 1.0, 0.01, "clip range"),
        "per_length": switch(False, "1/T per sequence"),
        "length_spread": slider(0.5, 0.0, 1.0, 0.05, "length spread"),
        "own_embeddings": switch(False, "own embeddings"),
        "angle": slider(60.0, 0.0, 90.0, 5.0, "angle of gradients (°)"),
        "masking": switch(False, "position masking"),
        "masked_share": slider(0.25, 0.0, 0.75, 0.05, "share masked"),
        "transform": menu("none", list(TRANSFORMS), "transform"),
        "follows_reward": slider(0.0, 0.0, 1.0, 0.05, "follows the reward"),
    }
    presets = {
        "drift of 0.3": {"drift": 0.3},
        "lengths and drift follow the reward": {"follows_reward": 1.0},
        "sequence ratio, 1/T and clip together": {
            "clipping": "asymmetric",
            "drift": 0.3,
            "per_length": True,
        },
    }
    return Explorer(compute_exchange, charts.exchange_chart, controls, describe, presets=presets)


class FormulaExplorer(Explorer):
    """An explorer with an equation between its controls and its chart."""

    def __init__(self, *arguments, **settings):
        self.equation = ipywidgets.HTMLMath(layout={"max_width": "860px"})
        super().__init__(*arguments, **settings)
        # above the chart, below the sentence
        place = self.box.children.index(self.chart)
        parts = [*self.box.children]
        self.box.children = [*parts[:place], self.equation, *parts[place:]]

    def _update_text(self) -> None:
        super()._update_text()
        self.equation.value = f"$${self.tables['formula']['latex'].iloc[0]}$$"


def explore_formula() -> FormulaExplorer:
    """The push of a chosen token by a chosen objective, written out with its numbers."""

    def describe(formula, pushes) -> str:
        row = formula.iloc[0]
        why = f" ({row['why']})" if row["why"] else ""
        return (
            f"By the formula the push is {row['push']:+.5f}{why}; autograd through TRL's loss gives"
            f" {row['autograd']:+.5f}."
        )

    controls = {
        "token": menu("A 10: 9", token_names(), "token"),
        "objective": menu("GRPO", list(OBJECTIVES), "objective"),
        "situation": menu("reused", list(SITUATIONS), "situation"),
        "beta": menu(0.0, [0.0, 0.04, 0.4], "weight β of the KL penalty"),
    }
    presets = {
        "B's error, stopped": {"token": "B 10: 8"},
        "start in A, GSPO": {"token": "A 1: start", "objective": "GSPO"},
        "start in B, GSPO": {"token": "B 1: start", "objective": "GSPO"},
        "start, B is shorter": {"token": "B 1: start", "situation": "lengths"},
    }
    return FormulaExplorer(
        compute_formula, charts.formula_chart, controls, describe, presets=presets
    )


def explore_reference_pull() -> Explorer:
    """What the KL penalty adds to a token's push, by how far the token is from its reference."""

    def describe(curve, chosen) -> str:
        push = chosen.set_index("series")["push"]
        words = [f"{name} {value:+.3f}" for name, value in push.items()]
        return f"At π / π_ref = {chosen['ratio'].iloc[0]:.3g}: {', '.join(words)}."

    controls = {
        "advantage": slider(-0.7, -1.0, 1.0, 0.1, "advantage of the rollout"),
        "beta": slider(0.04, 0.0, 0.4, 0.02, "weight β of the penalty"),
        "log2_ratio": slider(-2.0, -6.0, 6.0, 0.5, "log₂ of π / π_ref"),
    }
    presets = {
        "a good rollout": {"advantage": 0.7, "log2_ratio": 2.0},
        "ten times the penalty": {"beta": 0.4},
    }
    return Explorer(
        compute_reference_pull, charts.reference_pull_chart, controls, describe, presets=presets
    )


def explore_kl_drift() -> Explorer:
    """How far a softmax drifts on a push that did not cancel."""

    def describe(table) -> str:
        mine = table[table["series"] == PATHS[0]].set_index("step")["mean"]
        return (
            f"One step: {mine[1]:.1e} nats; {STEPS} steps: {mine[STEPS]:.1e} nats,"
            f" {mine[STEPS] / mine[1] if mine[1] > 0 else 0:,.0f} times as far."
        )

    controls = {
        "residual": slider(0.2, 0.0, 1.0, 0.02, "residual"),
        "p_shared": slider(0.4, 0.02, 0.98, 0.02, "probability of the token"),
        "lr": log_slider(0.1, -3, 1, "learning rate"),
        "same_sign": slider(1.0, 0.5, 1.0, 0.05, "same sign each step"),
    }
    return Explorer(compute_kl_drift, charts.kl_drift_chart, controls, describe)


def explore_solutions() -> Explorer:
    """Three equally right answers over many steps: which update operator keeps their odds?"""

    def describe(table) -> str:
        end = table[table["step"] == STEPS].set_index(["measure", "run"])["mean"]
        words = [
            f"{m} {end[m, RUNS[0]]:+.2f} ({RUNS[1]}: {end[m, RUNS[1]]:+.2f})" for m in MEASURES
        ]
        return f"After {STEPS} steps: {'; '.join(words)}."

    controls = {
        "weights": menu("one favoured", list(WEIGHTS), "weights"),
        "strength": slider(0.5, 0.0, 2.0, 0.1, "how unequal"),
        "operator": menu("softmax gradient", list(OPERATORS), "update operator"),
        "lr": slider(0.3, 0.02, 1.0, 0.02, "learning rate"),
        "transform": menu("none", list(TRANSFORMS), "transform"),
        "group_size": slider(8, 2, 32, 1, "group size"),
    }
    presets = {
        "natural gradient": {"operator": "natural gradient"},
        "min-replace": {"transform": "min-replace"},
    }
    return Explorer(compute_solutions, charts.solutions_chart, controls, describe, presets=presets)


# --- exercises


def check_unequal_weights(weights: list | None) -> None:
    """Check four positive weights, not all equal, under which the advantages 1.5, -0.5, -0.5, -0.5
    still cancel.

    >>> check_unequal_weights([1, 1, 1, 1])
    Not quite: these cancel, but all are equal, which cancels for every group. Find unequal ones.
    >>> check_unequal_weights([1, 2, 3, 4])
    Not quite: the pushes are +1.5, -1, -1.5, -2, and their sum is -3 instead of 0.
    """
    if (w := answer_of(weights)) is None:
        return
    w = w.double()
    advantages, group = torch.tensor(_ADVANTAGES, dtype=torch.float64), torch.zeros(4)
    if w.shape != (4,):
        print(
            f"Not quite: the shape is {tuple(w.shape)}; give one weight for each of the four"
            " rollouts."
        )
    elif not (w > 0).all() or not w.isfinite().all():
        print(
            "Not quite: a weight of 0 drops a rollout, a negative one reverses it; all four must be"
            " positive."
        )
    elif float(cancellation_residual(w, advantages, group)) > 1e-6:
        pushes = w * advantages
        listed = ", ".join(f"{push:+g}" for push in pushes.tolist())
        print(
            f"Not quite: the pushes are {listed}, and their sum is {pushes.sum():g} instead of 0."
        )
    elif float(w.max() - w.min()) <= 1e-6 * float(w.max()):
        print(
            "Not quite: these cancel, but all are equal, which cancels for every group. Find"
            " unequal ones."
        )
    else:
        residual = float(cancellation_residual(w, advantages.roll(1), group))
        print(
            "Right: unequal, and they cancel. Were the second answer right, the residual would be"
            f" {residual:.0%}."
        )
