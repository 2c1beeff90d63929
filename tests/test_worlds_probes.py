"""What a run can read off its own batches: by hand, by brute force, and as the audit does."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from audit.definitions import DEFINITIONS
from audit.reckoning import Units
from scipy import stats
from test_worlds_study import write

from workbook.probes.values import exact_values
from workbook.studies.bench import Bench
from workbook.studies.record import NotMeasured, Tables
from workbook.studies.registration import read_registration
from workbook.theory.decomposition import signal_share
from workbook.topics.worlds import charts, claims, probes
from workbook.topics.worlds.outcomes import OPEN
from workbook.views.style import to_spec


def made_readings(rng, signal: float) -> pd.DataFrame:
    """Readings of one unit, whose prompts' gradients are signal plus noise."""
    rows = []
    for batch, draw in itertools.product((0, 8, 24), range(16)):
        parts = torch.from_numpy(rng.normal(size=(2, 8, 50)))
        own = probes.part_sums(parts[0] + signal**0.5 * (1 + batch / 24))
        row = {"batch": batch, "draw": draw, "world": "any", **own}
        row |= {f"permuted_{name}": number for name, number in probes.part_sums(parts[1]).items()}
        rows.append(row | dict(zip(probes.PROBES[3:], rng.normal(size=5) + signal, strict=True)))
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All open worlds, each with more signal than the one before."""
    folder, rng = tmp_path_factory.mktemp("probes"), np.random.default_rng(0)
    for k, scale in enumerate(OPEN):
        for unit in range(10):
            signal = 0.002 * (k + 1)
            share = [
                8 * 50 * signal * (1 + t / 24) ** 2 / (8 * 50 * signal * (1 + t / 24) ** 2 + 50) for t in (0, 8, 24)
            ]
            truth = {"batch": (0, 8, 24), "mean2": np.array(share) * rng.lognormal(0, 0.05), "total2": 1.0}
            write(
                folder, "worlds_probes", scale, unit,
                readings=made_readings(rng, signal), truth=pd.DataFrame(truth),
            )  # fmt: skip
            errors = pd.DataFrame({"bias": [0.02 * (scale == "world:free")], "square": [0.0004]})
            write(folder, "worlds_values", scale, unit, errors=errors)
    return folder


def test_every_registered_row_is_measured_as_the_audit_does(folder):
    study, seen = "worlds_probes", set()
    registered = read_registration(study)
    for place in (study, f"{study}@worlds"):
        for key, number in claims.MEASURES.get(place, {}).items():
            scale = registered.outcomes[key].scales[-1]
            theirs = DEFINITIONS[study][key](Units(study, scale, registered.units[scale], folder))
            ours = number(Tables(scale, folder))
            assert bool(ours.attrs.get("log")) == bool(theirs.attrs.get("log"))
            np.testing.assert_allclose(ours.sort_index(), theirs.sort_index(), rtol=1e-9, atol=1e-12)
            seen.add(key)
    assert seen == set(registered.outcomes) == set(DEFINITIONS[study])


def test_probes_are_ranked_against_the_exact_share_over_worlds(folder, tmp_path):
    tables = Tables("worlds", folder)
    points = probes.probe_points(tables)
    assert points.groupby("world").size().tolist() == [3] * 11, "free does not count"
    values = claims.MEASURES["worlds_probes@worlds"]["Q5"](tables)
    rho = stats.spearmanr(points["prompts"], points["share"]).statistic
    assert rho > 0.9, "the more signal was put in, the more is read"
    assert len(values) == 11
    assert abs(values.mean() - rho) < 0.1
    assert abs(claims.MEASURES["worlds_probes@worlds"]["Q5 overstated"](tables).mean()) < 0.1, "without bias"
    assert abs(claims.MEASURES["worlds_probes"]["Q5 permuted"](Tables("world:third", folder)).mean()) < 0.02
    assert f"prompts (rank {rho:.2f})" in str(to_spec(charts.probe_chart(points)))
    with pytest.raises(NotMeasured):
        probes.probe_points(Tables("worlds", tmp_path))


def test_the_share_of_signal_is_without_bias_in_any_number_of_parts():
    """Sums of nine parts of 30 numbers each, of mean 1/3 and sd 1/2: |E g|^2 = 9 x 30, and E|g|^2 has 9/4 x 30 more."""
    parts = 1 / 3 + np.random.default_rng(0).normal(scale=0.5, size=(4000, 9, 30))  # batch, part, place
    whole2, parts2 = (parts.sum(1) ** 2).sum(), (parts**2).sum()
    assert signal_share(whole2, parts2, 9) == pytest.approx(9 / (9 + 9 / 4), rel=0.01)


def test_prompts_gradients_add_up_to_the_batches(monkeypatch):
    bench = Bench("tiny")
    rollouts, other = bench.rollouts, bench.rollouts.advantages.flip(0)
    own, twin = probes.prompt_gradients(bench.policy, rollouts, [rollouts.advantages, other])
    for parts, advantages in ((own, rollouts.advantages), (twin, other)):
        objective = (probes.scores(bench.policy.model, rollouts).sum(1) * advantages).mean()
        whole = torch.cat([g.flatten() for g in torch.autograd.grad(objective, list(bench.policy.model.parameters()))])
        assert torch.allclose(parts.sum(0).float(), whole, atol=1e-5 * float(whole.abs().max()))
    sums = probes.part_sums(own := torch.cat([own, own[:2]]))
    assert sums["whole2"] - sums["halves2"] == pytest.approx(2 * float(own[:4].sum(0) @ own[4:].sum(0)), rel=1e-6)
    assert sums["prompts2"] == pytest.approx(float(own.norm(dim=1) @ own.norm(dim=1)))
    places = torch.tensor([[0, 3], [5, 9], [20, 12], [40, 20]])
    monkeypatch.setattr(probes, "CONTINUATIONS", 400)
    credit = probes.reset_credit(bench.policy, bench.task, rollouts, places, 0, 1, 48)
    exact = exact_values(bench.policy, bench.task, rollouts).credit[tuple(places.T)]
    assert torch.allclose(credit, exact, atol=0.12), "four standard errors of a difference of two means of 400"
    assert probes.sides_apart(torch.tensor([3.0, 1, 5]), torch.tensor([1.0, -1, 2])) == 3


def test_a_run_is_read_at_its_checkpoints(monkeypatch):
    monkeypatch.setattr(probes, "DRAWS", 4)
    monkeypatch.setattr(probes, "RESETS", 2)
    tables = probes.probes_study(Bench("tiny"))
    read, truth = tables["readings"], tables["truth"]
    assert read.groupby("batch").size().to_dict() == {0: 4, 2: 4}
    assert read.groupby("draw")["reset gap"].count().tolist() == [2, 0, 2, 0]
    assert (read["mixed"] > 0).all()
    assert read["follows"].dropna().between(0.5, 1).all()
    assert (truth["total2"] > truth["mean2"]).all()
    assert truth["value"].is_monotonic_increasing
    silent = read.assign(seed=0, **{name: 0.0 for name in read if name.endswith("2")})
    assert (probes.probe_readings(silent)[[*probes.PARTS]] == 0).all(axis=None), "nothing pushed, no credit"
