"""Why a token moved: what every token that pushed did to it, through all weights, to first order in
the learning rate.

A step of SGD on J = sum_j w_j A_j log pi_j moves token i by

    dlogp_i = lr sum_j w_j A_j <grad log pi_i, grad log pi_j> + O(lr^2)

One backward pass gives g_i = grad log pi_i; one forward-mode pass along g_i gives <g_i, grad log
pi_j> of every token j of the batch (`workbook.probes.directions`), so no gradient but one is ever
held. AdamW's first step divides the batch's gradient G by |G| + eps, weight by weight; the same sum
with g_i / (|G| + eps) in place of g_i is exact for it, and its weight decay is a term of its own.
What the sum misses of a real step is the step's curvature.

    explanation = TokenExplainer(policy, rollouts, lr)(rollout, position)
    print(explanation)            # explained: 97 %, and by whom
    explanation.parts()           # own rollout, other rollouts of the prompt, other prompts, by the sign of the push
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.policies.models import private_copy
from workbook.probes.directions import Along, Direction
from workbook.probes.step import ONE_STEP_OPTIMIZERS, on_policy_pushes, require_pushes
from workbook.rollouts.credit import OutputStates, output_states
from workbook.rollouts.likelihood import in_passes, logps, passes
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.training.optimizers import optimizer_of, trained_weights

SOURCES = (
    *("itself", "its own rollout", "its prompt's others, A > 0", "its prompt's others, A < 0"),
    *("other prompts, A > 0", "other prompts, A < 0", "weight decay"),
)
ADAMW = {"eps": 1e-8, "weight_decay": 1e-2}  # torch's defaults
MAX_KEPT = 32  # explanations
STATES = ("hidden", "logits", "tokens")
SHOWN = [
    "token",
    "rollout",
    "position",
    "group",
    "advantage",
    "push",
    "product",
    "moved",
    "output_layer",
]


@dataclass(frozen=True)
class Explanation:
    """What moved one token.

    Attributes:
        place: (rollout, position).  token: its text.  lr, optimizer: of the step.
        tokens: a row per token that pushed: group, rollout, position, token_id, token, advantage,
        push (weight x
            advantage), product (of both gradients; under AdamW scaled by its step), moved (nats: lr
            push product), output_layer (the share of it that goes through the output layer alone,
            NaN under AdamW) and source.
        decay: nats by weight decay, 0 under SGD.  measured: nats by a real step.  method: of
        `directions.METHODS`.
    """

    place: tuple[int, int]
    token: str
    lr: float
    optimizer: str
    tokens: pd.DataFrame
    decay: float
    measured: float
    method: str

    @property
    def predicted(self) -> float:
        """The change to first order, in nats."""
        return float(self.tokens["moved"].sum()) + self.decay

    @property
    def explained(self) -> float:
        """The predicted change over the measured one; NaN where nothing moved."""
        return self.predicted / self.measured if self.measured else float("nan")

    @property
    def output_layer(self) -> float:
        """The part of the change that goes through the output layer alone, in nats."""
        return float(self.tokens["output_layer"].sum(min_count=1))

    def parts(self) -> pd.DataFrame:
        """Columns source, tokens, moved (nats), output_layer; a row per source that pushed."""
        grouped = self.tokens.groupby("source", sort=False)
        table = grouped.agg(tokens=("moved", "size"), moved=("moved", "sum"))
        table["output_layer"] = grouped["output_layer"].sum(min_count=1)
        if self.decay:
            table.loc["weight decay"] = [0, self.decay, np.nan]
        return (
            table.reindex([s for s in SOURCES if s in table.index])
            .rename_axis("source")
            .reset_index()
        )

    def movers(self, most: int = 10) -> pd.DataFrame:
        """The tokens that moved it most, the largest first."""
        order = self.tokens["moved"].abs().sort_values(ascending=False, kind="stable").index[:most]
        return self.tokens.loc[order, [*SHOWN, "source"]]

    def __str__(self) -> str:
        parts = "; ".join(f"{row.source} {row.moved:+.4f}" for row in self.parts().itertuples())
        return (
            f"{self.token!r} moved by {self.measured:+.4f} nats in a step of {self.optimizer} at lr"
            f" {self.lr:.3g}; to first order by {self.predicted:+.4f}: explained"
            f" {self.explained:.0%}. By {parts}."
        )


class TokenExplainer:
    """Explains tokens of one batch, one call each: `explainer(rollout, position)`.

    It keeps a copy of the policy as it is now, so that a widget's thread can ask while cells go on,
    and what a batch needs only once: the real step, and under AdamW the batch's gradient. A call
    takes a backward pass of one rollout and, of every rollout that pushes, a forward-mode pass and
    a plain one.

    lr: of the step.  measured: change of every completion token by the real step, (B, T) or in the
    order of the token table; None: the first call takes that step.  chosen: the tokens that push,
    by default all.  batch_size: rows of each pass; None: as many as memory holds.  Raises
    ValueError for a place without a token, another optimizer, an lr that is not above 0, and
    rollouts that push nothing.
    """

    def __init__(
        self,
        policy,
        rollouts: Rollouts,
        lr: float,
        optimizer: str = "sgd",
        measured: Float[Tensor, "B T"] | Sequence[float] | None = None,
        chosen: Bool[Tensor, "B T"] | None = None,
        parameters: str | Sequence[str] | None = None,
        batch_size: int | None = None,
    ):
        if optimizer not in ONE_STEP_OPTIMIZERS:
            raise InvalidValue(
                "optimizer",
                optimizer,
                f"{' or '.join(ONE_STEP_OPTIMIZERS)}, of which one step is explained",
            )
        if not lr > 0:
            raise InvalidValue("lr", lr, "above 0")
        require_pushes(rollouts)
        self.policy = private_copy(policy)
        self.rollouts = rollouts.to(policy.model.device)
        self.lr, self.optimizer, self.along = lr, optimizer, Along(self.policy, parameters)
        self.batch_size = batch_size
        self.chosen = (
            self.rollouts.completion_mask.bool()
            if chosen is None
            else chosen.to(policy.model.device)
        )
        self.pushes = on_policy_pushes(self.rollouts).masked_fill(~self.chosen, 0.0)
        self.measured = None if measured is None else self._of_tokens(measured)
        self.scale: Direction | None = None  # 1 / (|G| + eps) of AdamW
        self._known: dict[tuple[int, int], Explanation] = {}  # the latest MAX_KEPT

    def __call__(self, rollout: int, position: int) -> Explanation:
        """The explanation of one token; ValueError if the rollouts have none at that place."""
        lengths = self.rollouts.completion_mask.sum(1).tolist()
        if not (0 <= rollout < len(lengths) and 0 <= position < lengths[rollout]):
            raise InvalidValue(
                "token",
                (rollout, position),
                f"a completion token: rollouts 0 to {len(lengths) - 1} have {min(lengths)} to"
                f" {max(lengths)} of them",
            )
        place = int(rollout), int(position)
        if place not in self._known:
            if len(self._known) == MAX_KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[place] = in_batches(self._explanation)(*place, batch_size=self.batch_size)
        return self._known[place]

    def _explanation(self, r: int, t: int) -> Explanation:
        weights, own, decay = self.along.parameters, self.rollouts.select([r]), 0.0
        if self.measured is None or (self.optimizer == "adamw" and self.scale is None):
            self._take_step()
        direction = self.along.gradient(own, (0, t))
        if self.optimizer == "adamw":
            inner = sum(float((direction[name] * p.detach()).sum()) for name, p in weights.items())
            decay = -self.lr * ADAMW["weight_decay"] * inner
            direction = {name: g * self.scale[name] for name, g in direction.items()}
        table = pd.concat(list(self._moved_by(r, t, direction)), ignore_index=True)
        up, prompt = table["push"] > 0, table["group"] == int(self.rollouts.group_ids[r])
        kinds = [
            (table["rollout"] == r) & (table["position"] == t),
            table["rollout"] == r,
            prompt & up,
            prompt,
            up,
        ]
        return Explanation(
            place=(r, t),
            token=str(own.token_table()["token"].iloc[t]),
            lr=self.lr,
            optimizer=self.optimizer,
            tokens=table.assign(source=np.select(kinds, SOURCES[:5], SOURCES[5])),
            decay=decay,
            measured=float(self.measured[r, t]),
            method=self.along.method,
        )

    def _take_step(self) -> None:
        """The batch's gradient; what AdamW divides it by; and a copy's real step along it, unless
        that was measured.
        """
        whole = self.along.gradient_of(self.rollouts, self.pushes)
        if self.optimizer == "adamw":
            self.scale = {name: 1 / (g.abs() + ADAMW["eps"]) for name, g in whole.items()}
        if self.measured is None:
            before, mine, names = (
                logps(self.policy, self.rollouts),
                private_copy(self.policy),
                list(whole),
            )
            for name, p in trained_weights(mine, names).items():
                p.grad = whole.pop(name).neg_()
            optimizer_of(mine, self.optimizer, self.lr, names).step()
            self.measured = logps(mine, self.rollouts) - before

    def _moved_by(self, r: int, t: int, direction: Direction) -> Iterator[pd.DataFrame]:
        """What each token that pushes does to token (r, t), some rollouts of one prompt at a time."""
        pinned, layer = None, np.nan
        if self.optimizer == "sgd":
            pinned = output_states(self.policy, self.rollouts.select([r])).select(torch.tensor([t]))
        whole, pushing = self.rollouts.token_table(), self.pushes.any(1).cpu()
        groups = self.rollouts.group_ids.cpu()
        prompts = [
            (pushing & (groups == group)).nonzero().squeeze(1) for group in groups[pushing].unique()
        ]
        parts = [
            rows
            for prompt in prompts
            for rows in passes(self.policy, self.rollouts, prompt, "along")
        ]
        for rows in in_passes(parts, "explaining"):
            part, alive = self.rollouts.select(rows), self.rollouts.completion_mask[rows].bool()
            products = self.along.change(part, direction)[alive].double().cpu().numpy()
            push = self.pushes[rows][alive].double().cpu()
            if pinned is not None:  # nats through the output layer alone
                others = output_states(self.policy, part)
                fields = [
                    torch.cat([getattr(one, name) for one in (pinned, others)]) for name in STATES
                ]
                pushes = torch.cat([push.new_zeros(1), push]).to(fields[0].device)
                layer = (
                    OutputStates(*fields, others.cap)
                    .coupled(0, pushes, self.lr)["contribution"]
                    .to_numpy()[1:]
                )
                del others, fields  # before the next pass
            columns = {
                "push": push.numpy(),
                "product": products,
                "moved": self.lr * push.numpy() * products,
            }
            table = whole[whole["rollout"].isin(rows.tolist())].assign(
                **columns, output_layer=layer
            )
            yield table.loc[table["push"] != 0, ["token_id", *SHOWN]]

    def _of_tokens(self, measured) -> Float[Tensor, "B T"]:
        """A change of every token as (B, T), given so or in the order of the token table."""
        values, alive = (
            torch.as_tensor(np.array(measured), dtype=torch.float64),
            self.rollouts.completion_mask.bool(),
        )
        if values.shape == alive.shape:
            return values
        if values.shape != (int(alive.sum()),):
            raise InvalidValue(
                "measured.shape",
                tuple(values.shape),
                f"({int(alive.sum())},), one number per token",
            )
        return torch.zeros(alive.shape, dtype=torch.float64).masked_scatter(alive.cpu(), values)
