"""Explorers and exercises of chapters 00, 02, 04 and 13: what a toy group pushes."""

from functools import partial

import altair as alt
import numpy as np

from workbook.chapters.grading import answer_of, grade
from workbook.chapters.groups import charts
from workbook.chapters.groups.expected import MIXED, RULES, WEIGHTS, compute_mixed, compute_parts
from workbook.chapters.groups.toy import (
    COMPARED,
    PUSHED,
    compute_gradients_meet,
    compute_growing,
    push_on_word,
    sum_pushes,
)
from workbook.rollouts.example import ROLLOUTS, example_rollouts
from workbook.views.charts import describe_parts, signal_noise_chart
from workbook.views.explorer import Explorer, menu, power_slider, slider

# of eight rollouts that all go on with `is`
OPENINGS = ["so", "then", "so", "so", "thus", "so", "then", "so"]


def explore_gradients_meet() -> Explorer:
    """Slide the advantage of rollout B: at −1 the shared token stands still, the answers part."""

    def describe(table) -> str:
        net = table[table["source"] == "net"].set_index("token")["push"]
        # adding 0 turns -0.0 into 0.0, which shows no sign
        shared, a, b = net.loc[PUSHED] + 0.0
        still = "stands still" if abs(shared) < 1e-9 else f"moves by {shared:+.2f}"
        return f"The shared token {still}; “9” moves by {a:+.2f}, “8” by {b:+.2f}."

    controls = {
        "advantage_a": slider(1.0, -1.0, 1.0, 0.05, "advantage of A"),
        "advantage_b": slider(-1.0, -1.0, 1.0, 0.05, "advantage of B"),
        "p_shared": slider(0.25, 0.05, 0.95, 0.05, "probability of “start”"),
    }
    presets = {
        "two wrong answers for one right": {"advantage_b": -0.5},
        "B earned nothing": {"advantage_b": 0.0},
        "B a little better than average": {"advantage_b": 0.25},
        "“start” nearly certain": {"p_shared": 0.95},
    }
    return Explorer(
        compute_gradients_meet, charts.gradients_meet_chart, controls, describe, presets=presets
    )


def explore_growing() -> Explorer:
    """Add rollouts one at a time and watch the net push on shared and on specific words."""

    def describe(net, path, rollouts) -> str:
        seen = rollouts[rollouts["seen"]]
        if rollouts["reward"].nunique() == 1 and (rollouts["advantage"] == 0).all():
            return (
                f"All {len(rollouts)} rewards of this draw are equal, so every advantage is 0 and"
                " nothing is pushed."
            )
        if seen.empty:
            return "No rollout yet: nothing is pushed."

        # adding 0 turns -0.0 into 0.0, which shows no sign
        push = net.set_index("word")["push"] + 0.0
        pushes = ", ".join(f"“{word}” {push[word]:+.3f}" for word in charts.EXAMPLES.values())
        last = seen.iloc[-1]
        count = "all" if len(seen) == len(rollouts) else f"{len(seen)} of {len(rollouts)}"
        outcome = f"reward {last['reward']:.0f}, advantage {last['advantage']:+.2f}"
        return (
            f"Rollout {last['rollout']} says “{last['text']}”: {outcome}. Net push after {count}:"
            f" {pushes}."
        )

    controls = {
        "so_far": slider(8, 0, 32, 1, "rollouts added"),
        "group_size": menu(8, [2, 4, 8, 16, 32], "group size G"),
        "estimator": menu("grpo", COMPARED, "estimator"),
        "p_right": slider(0.5, 0.05, 0.95, 0.05, "probability of “9”"),
        "draw": slider(0, 0, 50, 1, "random draw"),
    }
    presets = {
        "another draw": {"draw": 1},
        "one with seven right answers": {"draw": 5},
        "one in which a rollout says “makes”": {"draw": 6},
        "only the right answers push": {"estimator": "positive_only"},
    }
    return Explorer(compute_growing, charts.growing_chart, controls, describe, presets=presets)


PART_SETTINGS = {  # of `compute_parts`
    "groups of 2": {"group_size": 2},
    "groups of 8": {},
    "groups of 32": {"group_size": 32},
    "sampler at 0.7": {"temperature": 0.7},
    "… and positive only": {"temperature": 0.7, "estimator": "positive_only"},
    "1/length": {"weights": "1/length, right and wrong alike"},
    "… wrong twice as long": {"weights": "1/length, wrong twice as long"},
    "8 prompts": {"prompts": 8},
}


def explore_parts() -> Explorer:
    """What moves the toy's words in one step, exactly: signal, bias, noise and coupling."""

    def describe(table) -> str:
        return f"{describe_parts(table)} {describe_parts(table, 'style')}"

    controls = {
        "group_size": slider(8, 2, 32, 1, "group size G"),
        "estimator": menu("grpo", RULES, "estimator"),
        "prompts": slider(1, 1, 8, 1, "prompts in the step"),
        "cosine": slider(0.2, 0.0, 0.8, 0.05, "cosine of prompts"),
        "temperature": slider(1.0, 0.5, 1.5, 0.05, "sampler's temperature"),
        "weights": menu("equal", list(WEIGHTS), "weights of rollouts"),
    }
    title = "Only words that decide the reward have signal"
    chart = partial(signal_noise_chart, title=title)
    return Explorer(compute_parts, chart, controls, describe, presets=PART_SETTINGS)


def explore_mixed() -> Explorer:
    """Sliders over the rate of success, its spread over prompts, and the rollouts of a step."""

    def describe(table) -> str:
        shares = table[table["series"] == MIXED].set_index("group_size")["mean"]
        at_least_half = shares.index[shares >= 0.5]
        first = "At no G do half teach"
        if len(at_least_half):
            first = f"From G = {at_least_half[0]} on at least half of the groups teach"
        return f"{first}; of pairs {shares[2]:.0%} do, of groups of eight {shares[8]:.0%}."

    controls = {
        "success": slider(0.4, 0.02, 0.98, 0.02, "probability of a right answer"),
        "spread": slider(0.3, 0.0, 0.9, 0.05, "spread of difficulty"),
        "rollouts": power_slider(128, 1024, "rollouts in a step", least=16),
    }
    return Explorer(compute_mixed, charts.mixed_chart, controls, describe)


# --- exercises


def check_word_push(function) -> None:
    """Check a function (word, said, advantages, p) -> sum of a group's pushes on the word's logit.

    >>> check_word_push(lambda word, said, advantages, p: sum(advantages) * (1 - p))
    Not quite: rollouts that said another word push this one by -p times their advantage.
    """
    # five rollouts in one context; two say "9"
    said = ["9", "8", "9", "1", "8"]
    advantages = [1.0, -0.5, 0.75, -0.25, 0.5]
    p = 0.6
    is_word = np.array([word == "9" for word in said])
    sizes = np.array(advantages)
    right = push_on_word("9", said, advantages, p)
    speakers = float(sizes[is_word].sum())
    mistakes = {
        "rollouts that said another word push this one by -p times their advantage.": (
            float(sizes.sum()) * (1 - p)
        ),
        "you left out the rollouts that said another word: they push by -p times theirs.": (
            speakers * (1 - p)
        ),
        "this is e alone; the score is e - p.": speakers,
        "this is the mean over the rollouts; their pushes add up.": right / len(said),
        "every sign is turned round; a positive advantage pushes what was said up.": -right,
        "this adds sizes; a negative advantage pushes the other way.": float(
            np.abs(sizes * (is_word - p)).sum()
        ),
    }
    praise = "Right: every rollout pushes by its advantage times e - p, and the pushes add up."
    grade(answer_of(function, "9", said, advantages, p), right, mistakes, praise)


def draw_word_pushes(function=None) -> alt.LayerChart:
    """Draw A and B of the book's prompt, each word coloured by the sum of pushes on it.

    function: a reader's `push_on_word`; the workbook's own where it is None, fails or returns None.
    """
    tokens = example_rollouts().token_table()
    pushes = None
    if function is not None:
        try:
            pushes = sum_pushes(tokens, function)
        except Exception:  # of a reader's unfinished function
            pushes = None
    print("Drawn with", "your function." if pushes is not None else "the workbook's push_on_word.")
    if pushes is None:
        pushes = sum_pushes(tokens, push_on_word)
    names = tokens["rollout"].map(dict(enumerate(ROLLOUTS)))
    return charts.word_pushes_chart(tokens.assign(rollout=names, push=pushes))


def check_signs(signs) -> None:
    """Check eight signs, +1 or -1, that leave `is` of all eight rollouts alone and push `so` most.

    >>> check_signs([1] * 8)
    Not quite: `is` is in all eight rollouts and your signs sum to +8, so it is pushed up 8 times.
    """
    got = answer_of(signs)
    if got is None:
        return
    signs = got.numpy()
    mistake = _mistake_in_signs(signs)
    if mistake:
        print(f"Not quite: {mistake}")
        return

    # `is` stands still with four signs of +1; at most these four rollouts push `so` up
    with_so = np.array(OPENINGS) == "so"
    net = int(signs[with_so].sum())
    most = 4 - (int(with_so.sum()) - 4)
    if net == most:
        print(
            f"Right: `is` stands still and `so` is pushed up by {net}, with the same words as"
            " before."
        )
    else:
        print(
            f"Not quite: `is` stands still, but `so` gets {net:+d}; {most:+d} can be had. Where"
            " are the four +1?"
        )


def _mistake_in_signs(signs: np.ndarray) -> str:
    """What keeps an answer to `check_signs` from leaving `is` alone; "" if nothing does."""
    if signs.shape != (8,):
        return f"eight rollouts need eight signs; there are {signs.size}."
    if not np.isin(signs, (-1, 1)).all():
        return "every sign must be +1 or -1."
    total = int(signs.sum())
    if total:
        direction = "up" if total > 0 else "down"
        return (
            f"`is` is in all eight rollouts and your signs sum to {total:+d}, so it is pushed"
            f" {direction} {abs(total)} times."
        )
    return ""
