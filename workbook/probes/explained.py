"""Explanation of a moved token: what every token that pushed did to it, through all weights.

A step of SGD on J = sum_j w_j A_j log pi_j moves the log-probability of token i, to first order in
the learning rate, by

    dlogp_i = lr sum_j w_j A_j <grad log pi_i, grad log pi_j> + O(lr^2)

so each token j of the batch has a part in it. One backward pass gives g_i = grad log pi_i; one
forward-mode pass along g_i gives <g_i, grad log pi_j> of every token j of the batch
(`workbook.probes.directions`), so no gradient but one is ever held.

AdamW's first step divides the batch's gradient G by |G| + eps, weight by weight; the same sum with
g_i / (|G| + eps) in place of g_i is exact for it, and its weight decay is a term of its own. What
the sum misses of a real step is the step's curvature.

    explanation = TokenExplainer(policy, rollouts, lr)(rollout, position)
    print(explanation)            # explained: 97 %, and by whom
    explanation.parts()           # own rollout, other rollouts of the prompt, other prompts

Letters: B rollouts, T tokens.
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
from workbook.rollouts.likelihood import in_passes, logps, passes
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.rollouts.states import OutputStates, output_states
from workbook.training.optimizers import optimizer_of, trained_weights

# where a push came from, nearest first
_SOURCES = (
    "itself",
    "its own rollout",
    "its prompt's others, A > 0",
    "its prompt's others, A < 0",
    "other prompts, A > 0",
    "other prompts, A < 0",
)
_DECAY = "weight decay"
_ADAMW = {"eps": 1e-8, "weight_decay": 1e-2}  # torch's defaults
_MAX_EXPLANATIONS = 32  # that an explainer keeps
_COLUMNS = [
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

    place: (rollout, position).  token: its text.  lr, optimizer: of the step.

    tokens: a row per token that pushed, with columns group, rollout, position, token_id, token,
    advantage; push, weight x advantage; product, of both gradients, under AdamW scaled by its step;
    moved, lr push product in nats; output_layer, the part of it that goes through the output layer
    alone, NaN under AdamW; source, where it came from.

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
    def sources(self) -> tuple[str, ...]:
        """All that a push may come from, in the order of `parts`."""
        return (*_SOURCES, _DECAY)

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
            table.loc[_DECAY] = [0, self.decay, np.nan]
        present = [source for source in self.sources if source in table.index]
        return table.reindex(present).rename_axis("source").reset_index()

    def movers(self, most: int = 10) -> pd.DataFrame:
        """The tokens that moved it most, the largest first."""
        size = self.tokens["moved"].abs()
        order = size.sort_values(ascending=False, kind="stable").index[:most]
        return self.tokens.loc[order, [*_COLUMNS, "source"]]

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
        device = policy.model.device
        self.policy = private_copy(policy)
        self.rollouts = rollouts.to(device)
        self.lr = lr
        self.optimizer = optimizer
        self.batch_size = batch_size
        self.along = Along(self.policy, parameters)
        alive = self.rollouts.completion_mask.bool()
        # tokens that are not chosen push nothing
        self.chosen = alive if chosen is None else chosen.to(device)
        self.pushes = on_policy_pushes(self.rollouts).masked_fill(~self.chosen, 0.0)  # (B, T)
        self.measured = None if measured is None else self._as_tokens(measured)  # (B, T)
        self.scale: Direction | None = None  # 1 / (|G| + eps) of AdamW
        self._explanations: dict[tuple[int, int], Explanation] = {}  # the latest ones

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
        place = (int(rollout), int(position))
        if place not in self._explanations:
            # the oldest one goes
            if len(self._explanations) == _MAX_EXPLANATIONS:
                self._explanations.pop(next(iter(self._explanations)))
            explain = in_batches(self._explain)
            self._explanations[place] = explain(*place, batch_size=self.batch_size)
        return self._explanations[place]

    def _explain(self, rollout: int, position: int) -> Explanation:
        """Explain one token, in passes that fit."""
        adamw = self.optimizer == "adamw"
        if self.measured is None or (adamw and self.scale is None):
            self._take_step()

        # g_i, one backward pass
        own = self.rollouts.select([rollout])
        direction = self.along.gradient(own, (0, position))
        decay = 0.0
        # AdamW's step is scaled weight by weight, and shrinks the weights beside
        if adamw:
            # decay moves the weights by -lr weight_decay theta, and the token by <g_i, that>
            along_weights = sum(
                float((direction[name] * p.detach()).sum())
                for name, p in self.along.parameters.items()
            )
            decay = -self.lr * _ADAMW["weight_decay"] * along_weights
            direction = {name: g * self.scale[name] for name, g in direction.items()}

        parts = list(self._movements(rollout, position, direction))
        table = pd.concat(parts, ignore_index=True)
        up = table["push"] > 0
        own_rollout = table["rollout"] == rollout
        own_prompt = table["group"] == int(self.rollouts.group_ids[rollout])
        # the first that holds, in the order of _SOURCES
        conditions = [
            own_rollout & (table["position"] == position),
            own_rollout,
            own_prompt & up,
            own_prompt,
            up,
        ]
        return Explanation(
            place=(rollout, position),
            token=str(own.token_table()["token"].iloc[position]),
            lr=self.lr,
            optimizer=self.optimizer,
            tokens=table.assign(source=np.select(conditions, _SOURCES[:-1], _SOURCES[-1])),
            decay=decay,
            measured=float(self.measured[rollout, position]),
            method=self.along.method,
        )

    def _take_step(self) -> None:
        """Take the batch's gradient, AdamW's scale from it, and a copy's real step along it.

        The step is left out where its changes were given.
        """
        gradient = self.along.gradient_of(self.rollouts, self.pushes)
        if self.optimizer == "adamw":
            self.scale = {name: 1 / (g.abs() + _ADAMW["eps"]) for name, g in gradient.items()}
        if self.measured is not None:
            return
        before = logps(self.policy, self.rollouts)
        mine = private_copy(self.policy)
        names = list(gradient)
        for name, p in trained_weights(mine, names).items():
            # an optimizer descends; each gradient is handed over, not copied
            p.grad = gradient.pop(name).neg_()
        optimizer_of(mine, self.optimizer, self.lr, names).step()
        self.measured = logps(mine, self.rollouts) - before

    def _movements(
        self, rollout: int, position: int, direction: Direction
    ) -> Iterator[pd.DataFrame]:
        """Rows of what each pushing token does to one, some rollouts of one prompt at a time."""
        own_state = None
        if self.optimizer == "sgd":
            own = output_states(self.policy, self.rollouts.select([rollout]))
            own_state = own.select(torch.tensor([position]))
        table = self.rollouts.token_table()
        for rows in in_passes(self._pushing_parts(), "explaining"):
            part = self.rollouts.select(rows)
            alive = part.completion_mask.bool()
            # of each token of the part, in the table's order
            products = self.along.change(part, direction)[alive].double().cpu().numpy()
            push = self.pushes[rows][alive].double().cpu()
            # the output layer's closed form is of SGD's step
            through_output_layer = np.nan
            if own_state is not None:
                through_output_layer = self._through_output_layer(own_state, part, push)
            moves = table[table["rollout"].isin(rows.tolist())].assign(
                push=push.numpy(),
                product=products,
                moved=self.lr * push.numpy() * products,
                output_layer=through_output_layer,
            )
            yield moves.loc[moves["push"] != 0, ["token_id", *_COLUMNS]]

    def _pushing_parts(self) -> list[Tensor]:
        """Rows of the rollouts that push, prompt by prompt, in parts that one pass holds."""
        pushing = self.pushes.any(1).cpu()
        groups = self.rollouts.group_ids.cpu()
        parts = []
        for group in groups[pushing].unique():
            rows = (pushing & (groups == group)).nonzero().squeeze(1)
            parts += passes(self.policy, self.rollouts, rows, "along")
        return parts

    def _through_output_layer(
        self, own: OutputStates, part: Rollouts, push: Float[Tensor, " n"]
    ) -> np.ndarray:
        """Nats (n,) by which a part's tokens move one through the output layer alone.

        own: the states of the one that moves.
        """
        others = output_states(self.policy, part)
        # the one first, and it pushes nothing
        both = OutputStates(
            torch.cat([own.hidden, others.hidden]),
            torch.cat([own.logits, others.logits]),
            torch.cat([own.tokens, others.tokens]),
            others.cap,
        )
        pushes = torch.cat([push.new_zeros(1), push]).to(both.hidden.device)
        return both.coupled(0, pushes, self.lr)["contribution"].to_numpy()[1:]

    def _as_tokens(self, measured) -> Float[Tensor, "B T"]:
        """A change of every token as (B, T), given so or in the order of the token table."""
        alive = self.rollouts.completion_mask.bool()
        count = int(alive.sum())
        values = torch.as_tensor(np.array(measured), dtype=torch.float64)
        if values.shape == alive.shape:
            return values
        # else in the order of the token table, which is that of the mask
        if values.shape != (count,):
            raise InvalidValue(
                "measured.shape", tuple(values.shape), f"({count},), one number per token"
            )
        return torch.zeros(alive.shape, dtype=torch.float64).masked_scatter(alive.cpu(), values)
