"""Explanations of a moved token: against brute force, against real steps, and as a heatmap's panel
shows them.
"""

import threading

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from workbook.messages import progress
from workbook.probes import TokenExplainer
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.scoring import sequence_logps
from workbook.views import TokenHeatmap
from workbook.views.style import NEGATIVE, POSITIVE, SERIES
from workbook.views.token_look import contrast_ratio

PLACE, LR = (1, 9), 0.05  # the wrong result of a step


@pytest.fixture(scope="module")
def batch(policy, task):
    rollouts = sample_rollouts(policy, task, 3, 4, seed=1)
    assert (rollouts.advantages.view(3, 4).abs().sum(1) > 0).sum() > 1, "two prompts push"
    return policy, rollouts


@pytest.fixture(scope="module")
def explained(batch):
    return TokenExplainer(*batch, LR)(*PLACE)


def gradients(policy, rollouts, places):
    """The gradient of each token's log-probability, one backward pass each."""
    fields = (
        rollouts.prompt_ids,
        rollouts.prompt_mask,
        rollouts.completion_ids,
        rollouts.completion_mask,
    )
    rows = []
    for r, t in places:
        logps, _ = sequence_logps(policy.model, *(x[[r]] for x in fields))
        slopes = torch.autograd.grad(logps[0, t], list(policy.model.parameters()))
        rows.append(torch.cat([slope.flatten() for slope in slopes]).double())
    return torch.stack(rows)


def test_every_term_is_brute_forces(batch, explained):
    policy, rollouts = batch
    table = explained.tokens
    few = table.iloc[:: len(table) // 25]
    own = table[(table["rollout"] == PLACE[0]) & (table["position"] == PLACE[1])]
    few = pd.concat([few, own]) if rollouts.advantages[PLACE[0]] else few
    slopes = gradients(
        policy, rollouts, [PLACE, *zip(few["rollout"], few["position"], strict=True)]
    )
    products = (slopes[1:] @ slopes[0]).numpy()
    np.testing.assert_allclose(
        few["product"], products, rtol=1e-4, atol=1e-4 * np.abs(products).max()
    )
    advantages = rollouts.advantages.numpy()[few["rollout"]]
    np.testing.assert_allclose(
        few["push"], advantages / rollouts.completion_mask.numel(), rtol=1e-6
    )
    np.testing.assert_allclose(few["moved"], LR * few["push"] * few["product"])


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 1e-3), ("adamw", 2e-6)])
def test_a_small_real_step_is_explained(batch, optimizer, lr):
    explanation = TokenExplainer(*batch, lr, optimizer)(*PLACE)
    assert explanation.explained == pytest.approx(1, abs=0.05)
    parts = explanation.parts()
    assert parts["moved"].sum() == pytest.approx(explanation.predicted)
    pushing = parts[parts["source"] != "weight decay"]
    assert pushing["tokens"].sum() == len(explanation.tokens)
    assert (explanation.decay != 0) == (optimizer == "adamw") == (len(parts) > len(pushing))


def test_tokens_that_do_not_push_have_no_part(batch, explained):
    chosen = torch.zeros_like(batch[1].completion_mask, dtype=torch.bool)
    chosen[PLACE] = True
    alone = TokenExplainer(*batch, 1e-3, chosen=chosen)(*PLACE)
    assert alone.parts()["source"].tolist() == ["itself"]
    assert alone.explained == pytest.approx(1, abs=0.05)
    own = explained.tokens.query("rollout == @PLACE[0] and position == @PLACE[1]")["moved"].item()
    assert alone.predicted / 1e-3 == pytest.approx(own / LR, rel=1e-4)


def test_the_output_layers_share_is_its_own_gradients_product(batch, explained):
    policy, _ = batch
    row = explained.tokens.iloc[7]
    head = policy.model.get_output_embeddings().weight
    assert head is not policy.model.get_input_embeddings().weight, (
        "untied: its gradient is the output layer's alone"
    )
    nothing = np.zeros(len(batch[1].token_table()))
    through = TokenExplainer(*batch, LR, measured=nothing, parameters=["lm_head.weight"])(*PLACE)
    np.testing.assert_allclose(
        through.tokens["moved"], explained.tokens["output_layer"], rtol=2e-3, atol=1e-7
    )
    assert row["output_layer"] != row["moved"]
    assert np.isnan(through.explained), "nothing moved, by what was given"


def test_what_cannot_be_explained_is_refused(batch):
    policy, rollouts = batch
    still = rollouts.select([0, 1])
    still = type(still)(**{**still.__dict__, "advantages": torch.zeros(2)})
    for given, place, field, value in [
        ((rollouts, LR), (0, 999), "token", (0, 999)),
        ((rollouts, 0.0), PLACE, "lr", 0.0),
        ((still, LR), PLACE, "rollouts", still),
        ((rollouts, LR, "lion"), PLACE, "optimizer", "lion"),
        ((rollouts, LR, "sgd", [0.0, 1.0, 2.0]), PLACE, "measured.shape", (3,)),
    ]:
        with refused(field, value):
            TokenExplainer(policy, *given)(*place)


def test_a_pin_is_explained_in_a_thread_with_its_numbers(batch, explained):
    policy, rollouts = batch
    explainer = TokenExplainer(policy, rollouts, LR)
    heatmap = TokenHeatmap(rollouts.token_table(), explain=explainer)
    heatmap.pin(*PLACE)
    heatmap.wait()
    np.testing.assert_allclose(
        heatmap.explanation.tokens["moved"], explained.tokens["moved"], rtol=1e-4, atol=1e-9
    )
    assert f"Explained: {100 * explained.explained:.0f} %" in heatmap.details["lines"][1]
    parts, movers = heatmap.details["tables"]
    assert [row["cells"][0] for row in parts["rows"]] == explained.parts()["source"].tolist()
    places = [
        rollouts.token_table().iloc[row["index"]][["rollout", "position"]].tolist()
        for row in movers["rows"]
    ]
    known = explained.movers()[["rollout", "position"]].values.tolist()
    assert [
        place for place, row in zip(places, movers["rows"], strict=True) if row["index"] >= 0
    ] == [place for place in known if place[0] < 4]
    sent = np.frombuffer(heatmap.moves, "<f4")
    own = explained.tokens.query("group == 0").set_index(["rollout", "position"])["moved"]
    assert sent[np.nonzero(sent)] == pytest.approx(own[own != 0].to_numpy(), rel=1e-3)
    assert heatmap.main["columns"][-1]["name"] == "moves pinned"
    heatmap.pinned = -1
    assert heatmap.details == {}


def test_an_explanation_is_stopped_and_a_newer_pin_takes_its_place(batch):
    _, rollouts = batch
    started, asked = threading.Event(), []

    def explain(rollout, position):
        asked.append(position)
        for _ in progress(range(10**9), "explaining"):
            started.set()
            if position == 2:
                raise ValueError("no <such> token")

    heatmap = TokenHeatmap(rollouts.token_table(), explain=explain)
    heatmap.pin(0, 0)
    assert started.wait(20)
    heatmap.pin(0, 1)
    heatmap._answer(None, {"kind": "stop"}, [])
    heatmap.wait()
    assert heatmap.busy == {}
    assert heatmap.message == "Stopped: this token is not explained."
    heatmap.pin(0, 2)
    heatmap.wait()
    assert heatmap.message == "This token can't be explained: no <such> token"
    assert asked[0] == 0
    assert asked[-1] == 2


def seen(color: str, kind: str) -> np.ndarray:
    """A colour in OKLab as a kind of colour vision sees it (Machado, Oliveira and Fernandes 2009,
    severity 1).
    """
    machado = {
        "normal": np.eye(3),
        "deuteranope": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        "protanope": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    }[kind]
    srgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    cones = [[0.412, 0.536, 0.051], [0.212, 0.681, 0.107], [0.088, 0.282, 0.630]]
    lab = [[0.210, 0.794, -0.004], [1.978, -2.429, 0.451], [0.026, 0.783, -0.809]]
    return np.array(lab) @ np.cbrt(np.array(cones) @ np.clip(np.array(machado) @ linear, 0, 1))


@pytest.mark.parametrize("kind", ["normal", "deuteranope", "protanope"])
def test_the_palette_can_be_told_apart_and_read_on_both_themes(kind):
    colors = np.array([seen(color, kind) for color in SERIES])
    distances = np.linalg.norm(colors[:, None] - colors[None], axis=-1)
    assert distances[np.triu_indices(len(SERIES), 1)].min() > 0.1
    assert all(
        min(contrast_ratio(color, "#ffffff"), contrast_ratio(color, "#111111")) >= 3
        for color in SERIES
    )
    assert not {POSITIVE, NEGATIVE} & set(SERIES)
