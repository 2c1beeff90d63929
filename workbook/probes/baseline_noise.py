"""What a baseline does to the noise of a step: shares of the group's mean reward, from none to all.

Advantages are r - share x mean reward of the group (`theory.advantages.partial_baseline`). So a
group's gradient is a straight line in the share,

    g(share) = mean of r s - share x (mean reward) x (mean of s)      s: gradient of log pi(rollout)

so two gradients a group say what every share would do. In expectation all shares push along the
policy gradient, times 1 - share / G with the group's own rewards in its mean. Only noise differs.

Letters: P prompts, M groups drawn of each, D trained weights, G group size.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from workbook.policies.models import evaluating
from workbook.probes.recovered import flat_gradient
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import Rollouts

PROMPTS, GROUP_SIZE = 8, 8  # of the step whose noise is read


def baseline_gradients(
    policy, rollouts: Rollouts
) -> tuple[Float[Tensor, "groups D"], Float[Tensor, "groups D"]]:
    """Each group's mean of r s, and its mean reward times its mean of s, in order of the groups."""
    rewarded, baseline = [], []
    with evaluating(policy.model), torch.enable_grad():
        for group in rollouts.group_ids.unique():
            part = rollouts.select((rollouts.group_ids == group).nonzero().squeeze(1))
            rewards = part.rewards.to(policy.model.device)
            logps = scores(policy.model, part).sum(1)  # (G,)
            both = flat_gradient(policy, (rewards * logps).mean(), keep_graph=True)
            rewarded.append(both.double())
            baseline.append(float(rewards.mean()) * flat_gradient(policy, logps.mean()).double())
    return torch.stack(rewarded), torch.stack(baseline)


def noise_of(
    gradients: Float[Tensor, "P M D"],
    exact: Float[Tensor, "P D"],
    share: float,
    prompts: int = PROMPTS,
    group_size: int = GROUP_SIZE,
) -> dict[str, float]:
    """Noise and signal of an update on so many prompts of one group each, from M groups of P
    prompts.

    noise: E|g - E g|^2 of an update on given prompts; own_signal: E|E g|^2 of these prompts;
    population_signal: the squared length of the mean over all prompts. Signal is exact: the exact
    gradients times 1 - share / G. own_share = own_signal / (own_signal + noise), population_share =
    population_signal / (own_signal + noise).
    """
    P, M, _ = gradients.shape
    spread = gradients - gradients.mean(1, keepdim=True)
    noise = float(spread.square().sum(2).sum(1).mean()) / (M - 1) / prompts
    mean = exact * (1 - share / group_size)
    whole, own = float(mean.sum(0).square().sum()), float(mean.square().sum())
    across = (whole - own) / (P * (P - 1))  # mean inner product of two prompts' gradients
    own_signal = own / P / prompts + across * (1 - 1 / prompts)
    return {
        "noise": noise,
        "own_signal": own_signal,
        "population_signal": across,
        "own_share": own_signal / (own_signal + noise),
        "population_share": across / (own_signal + noise),
    }
