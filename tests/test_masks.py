"""Masks by sharing, the dial of opposition, and DelTA's weights: by hand, on the bundled policy,
and in the trainer.
"""

import math

import pandas as pd
import pytest
import torch
from refusals import refused
from small_run import SMALL, bundled_trainer
from trl import GRPOConfig, GRPOTrainer

from workbook.probes.baseline_noise import noise_of
from workbook.probes.values import exact_values
from workbook.rollouts.credit_batches import credit_batch
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.teaching.delta import Half
from workbook.studies.teaching.masks import mask_rules, rates_by_end_value
from workbook.studies.teaching.tabular import table_change
from workbook.tasks import get_task
from workbook.theory import (
    group_advantages,
    partial_baseline,
    shared_by_place,
    shared_by_word,
    specific_by_place,
    specific_by_word,
)
from workbook.theory.coupling import coupling_kernel
from workbook.theory.credit import CreditBatch
from workbook.theory.credit_controls import Opposition
from workbook.theory.credit_masks import (
    MatchedCredit,
    SureTokens,
    sign_shared_tokens,
    unsure_tokens,
)
from workbook.theory.credit_rules import delta, discrimination
from workbook.training import CancellationConfig, CancellationTrainer
from workbook.training.loop import LoopConfig, train

pytestmark = pytest.mark.usefixtures("one_thread")
WORD_RULES = (shared_by_word, specific_by_word)
PLACE_RULES = (shared_by_place, specific_by_place)


def small_batch(**known):
    """A good and a bad rollout: 5 stands in both at one place, 7 in both at two, 6 and 8 in one
    alone.
    """
    ids = torch.tensor([[5, 6, 7, 0], [5, 7, 8, 9]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    logps = torch.full((2, 4), -1.0)
    logps[1, 3] = math.log(0.95)  # a sure token
    return CreditBatch(
        torch.tensor([1.0, 0.0]), torch.zeros(2), ids, mask, old_logps=logps, **known
    )


def test_masks_by_hand():
    batch = small_batch()
    pushed = {
        rule.__name__: (rule(batch) != 0).int().tolist() for rule in (*WORD_RULES, *PLACE_RULES)
    }
    assert pushed["shared_by_word"] == [[1, 0, 1, 0], [1, 1, 0, 0]]
    assert pushed["specific_by_word"] == [[0, 1, 0, 0], [0, 0, 1, 0]]
    assert pushed["shared_by_place"] == [[1, 0, 0, 0], [1, 0, 0, 0]]
    assert pushed["specific_by_place"] == [[0, 1, 1, 0], [0, 1, 1, 0]]
    assert shared_by_word(batch)[:, 0].tolist() == [0.5, -0.5]


def test_a_place_is_the_grammars_slot_where_it_is_known():
    """With slots that say so, the two 7s stand at one place though one more word stands before the
    first.
    """
    batch = small_batch(places=torch.tensor([[0, -1, 1, 0], [0, 1, 2, 3]]))
    assert (shared_by_place(batch) != 0).int().tolist() == [[1, 0, 1, 0], [1, 1, 0, 0]]


def test_words_keep_their_places_however_much_is_rambled():
    task = get_task("world:ramble")
    prompt = "5 - 6 + 3 + 1 - 2 ="
    plain = task.render(prompt).split()
    at = plain.index("is") + 2  # behind the first result
    rambling = [*plain[:at], "well", "hm", *plain[at:]]
    places = task.places(prompt, rambling)
    assert places[:at] + places[at + 2 :] == task.places(prompt, plain)
    assert places[at] == places[at + 1]
    assert places[at] not in task.places(prompt, plain)


def test_shared_and_specific_are_all_unsure_tokens(policy):
    batch = chain_batch(policy)
    for shared, specific in (WORD_RULES, PLACE_RULES):
        signed = batch.group_advantages() != 0
        both = (shared(batch) != 0).int() + (specific(batch) != 0).int()
        assert torch.equal(both, (unsure_tokens(batch) & signed.unsqueeze(1)).int())
        assert (shared(batch) != 0).any()
        assert (specific(batch) != 0).any()


def chain_batch(policy, **more):
    task = get_task("chain")
    rollouts = sample_rollouts(policy, task, 6, 8, seed=5)
    known = {
        "known_credit": exact_values(policy, task, rollouts).credit,
        "logps": rollouts.old_logps,
    }
    return credit_batch(policy, rollouts, task, seed=1, **known | more)


@pytest.mark.parametrize("rule", [*WORD_RULES, *PLACE_RULES])
def test_a_twin_draws_its_set_from_permuted_signs_and_pushes_with_the_true_ones(policy, rule):
    batch = chain_batch(policy)
    twin = rule(batch, permute_signs=True)
    advantages = batch.group_advantages().unsqueeze(1)
    assert torch.equal(twin, torch.where(twin != 0, advantages, 0.0))
    assert (twin != 0).any()
    assert not torch.equal(twin != 0, rule(batch) != 0)


def test_matched_credit_holds_as_much_as_its_mask(policy):
    batch = chain_batch(policy)
    size, advantages = batch.known_credit.abs(), batch.group_advantages()
    wanted = unsure_tokens(batch) & sign_shared_tokens(batch, advantages, by_place=True)
    taken = MatchedCredit(shared=True, by_place=True)(batch) != 0
    assert not (taken & ~unsure_tokens(batch)).any()
    for rows in batch.groups():
        if not advantages[rows].any():
            continue
        least = size[rows][unsure_tokens(batch)[rows]].max()  # what one token more or less can be
        assert (size[rows][taken[rows]].sum() - size[rows][wanted[rows]].sum()).abs() <= least


def test_sure_tokens_are_the_others(policy):
    batch = chain_batch(policy)
    advantages = batch.group_advantages()
    sure = SureTokens()(batch) != 0
    assert torch.equal(sure, batch.mask & ~unsure_tokens(batch) & (advantages != 0).unsqueeze(1))


# --- DelTA


def test_discrimination_is_the_difference_of_two_cosines(policy):
    batch = chain_batch(policy)
    advantages, states = batch.group_advantages(), batch.states
    kernel = coupling_kernel(states.hidden, states.logits, states.tokens).double()
    pushes = advantages.unsqueeze(1).expand(batch.mask.shape)[batch.mask].double()
    cosines = {}
    for side in (1, -1):
        weights = (pushes * side).clamp(min=0)
        products = kernel @ (weights / weights.sum())
        cosines[side] = (
            products
            / (kernel.diag() * (weights / weights.sum() @ products)).clamp(min=1e-24).sqrt()
        )
    expected = pushes.sign() * (cosines[1] - cosines[-1])
    clear = kernel.diag() > 1e-6 * kernel.diag().max()  # a sure token's gradient is rounding alone
    found = discrimination(batch, advantages)[batch.mask].double()
    torch.testing.assert_close(found[clear], expected[clear], rtol=1e-3, atol=1e-3)


def test_deltas_weights_lie_about_one_and_leave_each_side_its_mass(policy):
    batch = chain_batch(policy)
    advantages = batch.group_advantages()
    weights = (delta(batch) / advantages.unsqueeze(1))[batch.mask & (advantages != 0).unsqueeze(1)]
    assert 0.8 / 1.2 - 1e-6 <= weights.min() < 1 < weights.max() <= 1.2 / 0.8 + 1e-6
    for side in (1, -1):
        rows = batch.mask & (advantages.sign() == side).unsqueeze(1)
        assert float((delta(batch) / advantages.unsqueeze(1))[rows].mean()) == pytest.approx(
            1, rel=1e-4
        )


def test_halves_are_as_large_as_one_another(policy):
    batch = chain_batch(policy)
    pushing = (batch.mask & (batch.group_advantages() != 0).unsqueeze(1)).sum()
    counts = {
        name: int((Half(name)(batch) != 0).sum())
        for name in ("top half", "bottom half", "random half")
    }
    assert counts["top half"] + counts["bottom half"] == pushing
    assert abs(counts["top half"] - counts["bottom half"]) <= 0.02 * pushing
    assert abs(counts["random half"] - pushing / 2) <= 1


# --- the dial of opposition

REWARDS, GROUPS = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0]), torch.tensor([0, 0, 0, 1, 1, 1])


def test_the_dial_goes_from_reinforce_to_the_groups_mean():
    assert torch.equal(
        partial_baseline(REWARDS, GROUPS, 1.0), group_advantages(REWARDS, GROUPS, "dr_grpo")
    )
    assert torch.equal(partial_baseline(REWARDS, GROUPS, 0.0), REWARDS)
    half = partial_baseline(REWARDS, GROUPS, 0.5)
    torch.testing.assert_close(half, torch.tensor([5 / 6, -1 / 6, -1 / 6, 0.5, 0.5, 0.5]))
    with refused("share", 1.5):
        partial_baseline(REWARDS, GROUPS, 1.5)


def test_groups_of_equal_rewards_can_be_left_out():
    batch = CreditBatch(REWARDS, GROUPS, torch.ones(6, 1).long(), torch.ones(6, 1))
    assert Opposition(0.0, drop_equal=True)(batch).tolist() == [1, 0, 0, 0, 0, 0]
    assert Opposition(0.0)(batch).tolist() == REWARDS.tolist()


DIALLED = {
    "max_steps": 2,
    "steps_per_generation": 1,
    "scale_rewards": "none",
    "learning_rate": 5e-3,
}


def test_all_of_the_baseline_is_trls_bit_for_bit(tmp_path):
    ends = []
    for kind, config, more in (
        (GRPOTrainer, GRPOConfig, {}),
        (CancellationTrainer, CancellationConfig, {"baseline_share": 1.0}),
    ):
        trainer = bundled_trainer(kind, config(output_dir=str(tmp_path), **SMALL | DIALLED | more))
        trainer.train()
        ends.append(trainer.model.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_trainer_subtracts_the_share(tmp_path, share):
    args = CancellationConfig(
        str(tmp_path), baseline_share=share, record_tokens=1, **SMALL | DIALLED
    )
    trainer = bundled_trainer(CancellationTrainer, args)
    trainer.train()
    for path in tmp_path.glob("tokens/*.parquet"):  # a file a step
        rollouts = pd.read_parquet(path).drop_duplicates("rollout")
        means = rollouts.groupby("group")["reward"].transform("mean")
        assert (rollouts["advantage"] - (rollouts["reward"] - share * means)).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"scale_rewards": "group"}, "scale_rewards"),
        ({"advantage_estimator": "rloo"}, "advantage_estimator"),
        ({"baseline_share": 1.5}, "baseline_share"),
    ],
)
def test_a_dial_that_would_explode_or_do_nothing_is_refused(tmp_path, settings, name):
    args = CancellationConfig(str(tmp_path), **SMALL | DIALLED | {"baseline_share": 0.5} | settings)
    with pytest.raises(ValueError, match=name):
        bundled_trainer(CancellationTrainer, args)


def test_noise_and_signal_are_what_gradients_were_drawn_from():
    """Gradients drawn about known means: noise of 8 prompts, own and population signal, and a share
    that scales.
    """
    generator = torch.Generator().manual_seed(0)
    P, M, D = 200, 40, 30
    common = torch.randn(D, generator=generator).double()
    exact = common + torch.randn(P, D, generator=generator).double()
    drawn = exact[:, None] + 2 * torch.randn(P, M, D, generator=generator).double()
    numbers = noise_of(drawn, exact, share=0.0)
    assert numbers["noise"] == pytest.approx(4 * D / 8, rel=0.02)
    assert numbers["population_signal"] == pytest.approx(float(common.square().sum()), rel=0.1)
    assert numbers["own_signal"] == pytest.approx(float(common.square().sum()) + D / 8, rel=0.1)
    dialled = noise_of(drawn * (1 - 0.5 / 8), exact, share=0.5)
    assert dialled["own_share"] == pytest.approx(numbers["own_share"])


# --- the loop and the table without coupling


def test_a_step_of_sgd_on_a_gradient_of_length_one_is_as_long_as_its_rate(policy):
    sizes = {"prompts": 4, "group_size": 4, "batches": 1}
    config = LoopConfig(**sizes, optimizer="sgd", lr=0.03, match="grad_norm")
    run = train(policy, get_task("chain"), config, seed=3)
    assert run["step_length"].iloc[-1] == pytest.approx(0.03, rel=1e-3)


def test_one_visit_moves_a_token_by_its_own_push():
    probs = torch.tensor([[0.5, 0.3, 0.2]])
    words, pushes = torch.tensor([1]), torch.tensor([0.7])
    score = torch.tensor([-0.5, 0.7, -0.2])
    moved = table_change(probs, probs, words, pushes, torch.zeros(1), 1, torch.Generator())
    assert float(moved) == pytest.approx(float(0.7 * score @ score), rel=1e-5)


def test_many_visits_move_tokens_by_their_credit():
    """The expected push on a context's logits is p (Q - V), so a word's change is <e - p, p (Q -
    V)>.
    """
    probs, chances = torch.tensor([[0.5, 0.3, 0.2]] * 3), torch.tensor([[0.9, 0.1, 0.4]] * 3)
    value = (probs * chances).sum(1)
    words = torch.tensor([0, 1, 2])
    moved = table_change(
        probs, chances, words, torch.zeros(3), value, 40_000, torch.Generator().manual_seed(0)
    )
    push = probs * (chances - value[:, None])
    expected = push.gather(1, words[:, None]).squeeze(1) - (probs * push).sum(1)
    torch.testing.assert_close(moved / 40_000, expected, rtol=0, atol=0.01)


def test_rates_are_those_at_which_runs_end_highest():
    rows = [
        {"arm": arm, "lr": lr, "batch": batch, "value": value * (batch == 32)}
        for arm, values in (
            ("plain", (0.5, 0.7)),
            ("shared by word", (0.9, 0.1)),
            ("specific by place", (0.2, 0.3)),
        )
        for lr, value in zip((1e-3, 2e-3), values, strict=True)
        for batch in (0, 32)
    ]
    table = pd.DataFrame(rows)
    missing = [
        table.query("arm == 'shared by word'").assign(arm=name)
        for name in ("specific by word", "shared by place")
    ]
    assert rates_by_end_value(pd.concat([table, *missing])) == {"plain": 2e-3, "masks": 1e-3}
    assert rates_by_end_value(table.query("arm == 'plain'")) == {"plain": 2e-3}


def test_every_mask_has_two_twins():
    names = [name for name in mask_rules() if "by " in name and "," not in name]
    assert len(names) == 4
    assert all(
        {f"{name}, permuted signs", f"{name}, matched credit"} <= {*mask_rules()} for name in names
    )
