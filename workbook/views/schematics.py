"""Schematics: what the chapters' charts measure, drawn, one message each.

A and B are the two rollouts of `5 - 6 + 3 =`, right and wrong; blue pushes up, orange down. Numbers
stand for an example and were not measured. Each function takes no argument and returns a chart.
"""

import random

import altair as alt

from workbook.views.canvas import BIG, SMALL, Canvas
from workbook.views.charts import PART_COLORS
from workbook.views.style import ACCENT, NEGATIVE, NEUTRAL, POSITIVE, SERIES

_SIGNAL, _BIAS, _NOISE = PART_COLORS[0], PART_COLORS[2], PART_COLORS[4]
_UP_TINT, _DOWN_TINT, _GREY_TINT, _GREY = "#d8e7f4", "#fae3cd", "#f1f1f1", "#b5b5b5"
_MINUS = "−"


def draw_grpo_step() -> alt.LayerChart:
    """A GRPO step: prompt, rollouts, rewards, advantages, one number on every token, one step."""
    canvas = Canvas(height=342)
    for x, head in [(68, "1 prompt"), (340, "G rollouts"), (545, "reward"), (640, "advantage")]:
        canvas.text(x, 16, head, color=NEUTRAL)
    canvas.box(6, 130, 124, 48, "5 - 6 + 3 =")
    unnamed = ["· · ·"] * 4
    rollouts = [
        ("A", ["5 - 6", "is 9", "9 + 3", "is 2"], 1),
        ("B", ["5 - 6", "is 8", "8 + 3", "is 1"], 0),
        ("", unnamed, 0),
        ("", unnamed, 1),
    ]
    for place, (name, words, reward) in enumerate(rollouts):
        y = 66 + 60 * place
        color, tint = (POSITIVE, _UP_TINT) if reward else (NEGATIVE, _DOWN_TINT)
        advantage = "+0.9" if reward else f"{_MINUS}0.9"
        canvas.arrow((132, 154), (155, y), width=2)
        canvas.text(173, y, name, BIG, bold=True)
        for column, word in enumerate(words):
            x = 188 + 79 * column
            canvas.box(x, y - 26, 75, 52, fill=tint, edge=color, on_top=True)
            canvas.text(x + 37, y - 12, word)
            canvas.text(x + 37, y + 13, advantage, color=color, bold=True)
        canvas.text(545, y, str(reward), BIG)
        canvas.text(640, y, advantage, BIG, color, bold=True)
    canvas.arrow((344, 276), (344, 302))
    canvas.box(188, 304, 312, 34, "one step: all pushes added")
    return canvas.chart(
        "GRPO gives every token of a rollout the same number",
        "One prompt, 5 - 6 + 3 =, gets G rollouts, A and B among them. Each has one reward; reward"
        " minus the group's mean, divided by its standard deviation, is its advantage. Every token"
        " of the rollout is pushed by that number, and one step adds all pushes.",
    )


def draw_shared_weights() -> alt.LayerChart:
    """Pushes that share a context cancel exactly, pushes that share weights alone in part."""
    canvas = Canvas(height=346)
    canvas.line((336, 0), (336, 346), color=_GREY, width=1)
    canvas.text(165, 16, "one context", BIG, bold=True)
    canvas.text(520, 16, "two contexts", BIG, bold=True)

    def bar(x: float) -> None:
        canvas.line((x - 50, 200), (x + 50, 200), color="black")
        canvas.box(x - 22, 112, 44, 88, fill=_GREY_TINT)
        canvas.text(x, 216, "is")

    def push(x: float, name: str) -> None:
        is_up = name == "A"
        color = POSITIVE if is_up else NEGATIVE
        ends = [(x, 196), (x, 116)]
        canvas.arrow(*(ends if is_up else ends[::-1]), color=color, width=6)
        canvas.text(x + (-24 if is_up else 24), 156, name, BIG, color, bold=True)

    canvas.box(75, 48, 180, 40, "… then 5 - 6")
    bar(165)
    push(125, "A")
    push(205, "B")
    canvas.text(165, 266, f"+1 {_MINUS} 1 = 0", BIG)
    canvas.text(165, 314, "cancels exactly", BIG, bold=True)
    for x, context in [(435, "now 9 + 3"), (605, "now 8 + 3")]:
        canvas.box(x - 72, 48, 144, 40, context)
        bar(x)
        canvas.line((x, 228), (520, 250), width=2)
    push(395, "A")
    push(645, "B")
    canvas.box(430, 246, 180, 38, "shared weights", fill=_GREY_TINT, on_top=True)
    canvas.text(520, 314, "cancels in part", BIG, bold=True)
    return canvas.chart(
        "Opposite pushes cancel exactly in a shared context",
        "Left: after … then 5 - 6, rollouts A and B both say is. They share one softmax, so +1 and"
        " -1 add up to 0. Right: after 9 + 3 and after 8 + 3 they say is in two contexts. They"
        " share weights alone, and cancel as far as the hidden states are alike.",
    )


def draw_step_parts() -> alt.LayerChart:
    """A step as a sum of arrows: signal, bias, and the noise that changes with the batch."""
    canvas = Canvas(height=320)
    start, signal, mean, step = (24, 300), (300, 240), (390, 160), (480, 36)
    others = [(598, 142), (576, 208), (506, 256), (276, 118), (338, 66), (286, 182)]
    for other in others:
        canvas.line(mean, other, color=PART_COLORS[3], width=3)
        canvas.dot(*other, 6, PART_COLORS[3], PART_COLORS[3])
    canvas.arrow(start, step, color="black", width=4)
    canvas.arrow(start, signal, color=_SIGNAL, width=7)
    canvas.arrow(signal, mean, color=_BIAS, width=7)
    canvas.arrow(mean, step, color=_NOISE, width=7)
    canvas.text(180, 296, "signal", BIG, _SIGNAL, bold=True)
    canvas.text(372, 226, "bias", BIG, _BIAS, bold=True)
    canvas.text(490, 112, "noise", BIG, _NOISE, bold=True)
    canvas.text(150, 170, "this step", BIG, bold=True)
    canvas.text(606, 290, "steps of\nother batches", color=_NOISE)
    return canvas.chart(
        "Another batch changes a step's noise alone",
        "Arrows: the signal is what the policy gradient asks for, the bias stays in every batch,"
        " and the noise is one batch's chance. Their sum is the step. Steps of other batches fan"
        " out around signal + bias.",
    )


def draw_merging_paths() -> alt.LayerChart:
    """Rollouts as paths that meet in states; a state's mean reward is its worth."""
    canvas = Canvas(height=330)
    start, nine, eight = (80, 170), (350, 90), (350, 250)
    two, one = (610, 90), (610, 250)
    # eight rollouts by their states, A first, B second
    routes = [(nine, two), (eight, one), (nine, two), (nine, two), (nine, one)]
    routes += [(eight, one), (eight, one), (eight, two)]
    shifts = {0: -9, 1: 9}
    for place, route in reversed([*enumerate(routes)]):
        color = {0: POSITIVE, 1: NEGATIVE}.get(place, _GREY)
        shift = shifts.get(place, 5 * (place % 4) - 6)
        points = [(x, y + shift) for x, y in (start, *route)]
        canvas.line(*points, color=color, width=5 if place < 2 else 2.5)
    states = [
        (start, ".50", "5"),
        (nine, ".75", "9"),
        (eight, ".25", "8"),
        (two, "1", "2"),
        (one, "0", "1"),
    ]
    for (x, y), value, number in states:
        is_dark = value in ("1", ".75")
        fill = {"0": "white", ".25": "#cbdeed", ".50": "#97bcd9", ".75": "#5a95c3", "1": POSITIVE}
        ink = "white" if is_dark else "black"
        canvas.dot(x, y, 32, fill[value], text=value, size=BIG, color=ink, bold=True)
        above = y < 200 and number != "5"
        canvas.text(x, y + (-48 if above else 48), f"at {number}", color=NEUTRAL)
    canvas.text(205, 86, "A +.25", BIG, POSITIVE, bold=True)
    canvas.text(205, 254, f"B {_MINUS}.25", BIG, NEGATIVE, bold=True)
    canvas.text(480, 58, "+.25", BIG, POSITIVE, bold=True)
    canvas.text(480, 282, f"{_MINUS}.25", BIG, NEGATIVE, bold=True)
    return canvas.chart(
        "A state is worth its paths' mean reward; credit is the change along a path",
        "Eight rollouts of 5 - 6 + 3 = as paths over the running value. In each circle stands the"
        " mean reward of the paths through it: .50 at 5, .75 at 9, .25 at 8, 1 at 2, 0 at 1. From 5"
        " to 9, A gains .25; from 5 to 8, B loses .25.",
    )


def draw_reference_pull() -> alt.LayerChart:
    """The KL penalty as a rubber band between a word's probability and the reference's."""
    canvas = Canvas(height=300)
    reference = 250
    canvas.text(reference, 16, "reference", BIG, bold=True)
    canvas.line((reference, 34), (reference, 250), color="black", width=3)
    for y, name, place, width in [(95, "small β", 560, 2.5), (195, "large β", 390, 7)]:
        canvas.text(20, y, name, BIG, bold=True, align="left")
        canvas.line((150, y + 34), (680, y + 34), color=_GREY, width=1.5)
        coils = 16
        points = [(reference, y)]
        for coil in range(1, coils):
            x = reference + (place - reference) * coil / coils
            points.append((x, y + (9 if coil % 2 else -9)))
        canvas.line(*points, (place, y), color=NEUTRAL, width=width)
        canvas.arrow((place, y), (place + 92, y), color=_SIGNAL, width=6)
        canvas.dot(place, y, 13, "black")
        canvas.text(place + 52, y - 28, "reward", color=_SIGNAL, bold=True)
    canvas.text(415, 262, "probability of a word →", color=NEUTRAL)
    return canvas.chart(
        "The KL penalty is a rubber band to the reference",
        "The reward pulls a word's probability away from the reference policy's. A rubber band of"
        " strength beta pulls it back: with a small beta the word ends far from its reference"
        " probability, with a large beta close to it.",
    )


def draw_routes() -> alt.LayerChart:
    """The four routes by which pushes move a token."""
    canvas = Canvas(height=366)
    canvas.box(6, 30, 428, 232, edge=_GREY)
    canvas.box(484, 30, 210, 232, edge=_GREY)
    canvas.text(220, 14, "this prompt", color=NEUTRAL)
    canvas.text(590, 14, "other prompts", color=NEUTRAL)
    colors = [SERIES[0], SERIES[1], SERIES[2], SERIES[4]]
    for y in (76, 176, 228):
        for x in (24, 140, 296, 500, 596):
            if (x, y) != (296, 76):
                canvas.box(x, y - 18, 82, 36, fill=_GREY_TINT, edge=_GREY, on_top=True)
    canvas.box(290, 50, 108, 52, "token", "white", "black", on_top=True, size=BIG, bold=True)
    arrows = [
        ((344, 156), (344, 106), (368, 130)),
        ((226, 76), (286, 76), (254, 52)),
        ((190, 156), (284, 100), (210, 120)),
        ((482, 76), (402, 76), (456, 52)),
    ]
    for place, (start, end, number) in enumerate(arrows):
        canvas.arrow(start, end, color=colors[place], width=6)
        canvas.text(*number, str(place + 1), color=colors[place], bold=True)
    names = ["own context", "own rollout", "other rollouts", "other prompts"]
    for place, (name, color) in enumerate(zip(names, colors, strict=True)):
        x, y = 30 + 350 * (place % 2), 292 + 48 * (place // 2)
        canvas.dot(x, y, 17, color, color, str(place + 1), color="white", bold=True)
        canvas.text(x + 30, y, name, BIG, color, bold=True, align="left")
    return canvas.chart(
        "Pushes reach a token by four routes",
        "Pushes reach a token from its own context, from other words of its own rollout, from the"
        " prompt's other rollouts, and from rollouts of other prompts.",
    )


def draw_continuations() -> alt.LayerChart:
    """A prefix continued many times before and after a word: V, Q, and credit."""
    canvas = Canvas(height=330)
    for y, after, right in [(82, False, 4), (246, True, 6)]:
        end = canvas.chip(8, y, "then 5 - 6 is", size=BIG)
        if after:
            end = canvas.chip(end + 4, y, "9", _UP_TINT, POSITIVE, size=BIG, bold=True)
        for place in range(8):
            to = 330, y + 18 * (place - 3.5)
            canvas.line((end, y), to, color=_GREY)
            canvas.dot(*to, 7, "black" if place < right else "white")
        canvas.text(356, y, f"{right} of 8 right", align="left")
    canvas.text(575, 82, "V = .50", 28, bold=True)
    canvas.text(575, 246, "Q = .75", 28, bold=True)
    canvas.arrow((575, 106), (575, 222), color=POSITIVE, width=6)
    canvas.text(592, 164, "+.25", 28, POSITIVE, bold=True, align="left")
    canvas.text(560, 164, "credit of 9", BIG, POSITIVE, align="right")
    return canvas.chart(
        "Credit: how much a word raises the chance to be right",
        "The prefix then 5 - 6 is, continued eight times, ends right four times: V = .50. With the"
        " word 9 after it, six of eight end right: Q = .75. The difference, +.25, is the credit of"
        " 9.",
    )


def draw_pairs() -> alt.LayerChart:
    """Kinds of pairs of opposite pushes, and which of them cancel."""
    canvas = Canvas(height=306)
    canvas.text(120, 16, "A pushes up", color=POSITIVE, bold=True)
    canvas.text(350, 16, "B pushes down", color=NEGATIVE, bold=True)
    rows = [
        ("5 - 6", "is", "5 - 6", "is", "cancel exactly", "same word, same context"),
        ("9 + 3", "is", "8 + 3", "is", "cancel in part", "same word elsewhere"),
        ("5 - 6 is", "9", "5 - 6 is", "8", "add up", "other word, same context"),
    ]
    for place, (context_a, word_a, context_b, word_b, verdict, kind) in enumerate(rows):
        y = 66 + 96 * place
        for x, context, word, color, tint in [
            (120, context_a, word_a, POSITIVE, _UP_TINT),
            (350, context_b, word_b, NEGATIVE, _DOWN_TINT),
        ]:
            canvas.text(x + 16, y, context, BIG, NEUTRAL, align="right")
            canvas.chip(x + 24, y, word, tint, color, 40, BIG, bold=True)
        canvas.text(450, y - 2, verdict, 28, bold=True, align="left")
        canvas.text(8, y + 38, kind, SMALL, align="left")
        if place < 2:
            canvas.line((8, y + 58), (692, y + 58), color=_GREY, width=1)
    return canvas.chart(
        "Opposite pushes cancel on one word; on rivals they add",
        "Pairs of pushes of A and B. Same word, same context: they cancel exactly. Same word in"
        " another context: they cancel in part. Two rival words in one context: raising 9 and"
        " lowering 8 both move probability from 8 to 9, so they add up.",
    )


def draw_cuts() -> alt.LayerChart:
    """A generation batch cut into optimizer steps: shuffled, whole prompts, one sign."""
    canvas = Canvas(height=330)
    # (prompt, sign) of 16 rollouts
    batch = [(prompt, sign) for prompt in (1, 2, 3, 4) for sign in (1, 1, -1, -1)]
    shuffled = random.Random(11).sample(batch, len(batch))
    by_sign = sorted(batch, key=lambda rollout: -rollout[1])
    for place in range(4):
        canvas.text(216 + 138 * place, 16, f"step {place + 1}", color=NEUTRAL)
    cuts = [("whole\nprompts", batch), ("shuffled", shuffled), ("one sign", by_sign)]
    for row, (name, rollouts) in enumerate(cuts):
        y = 72 + 92 * row
        canvas.text(8, y, name, BIG, bold=True, align="left")
        for step in range(4):
            x = 152 + 138 * step
            canvas.box(x, y - 25, 130, 50, edge=_GREY)
            for place, (prompt, sign) in enumerate(rollouts[4 * step : 4 * step + 4]):
                color = POSITIVE if sign > 0 else NEGATIVE
                canvas.box(
                    x + 5 + 30.5 * place,
                    y - 18,
                    28,
                    36,
                    str(prompt),
                    color,
                    color,
                    on_top=True,
                    color="white",
                    bold=True,
                )
    canvas.text(350, 312, "number: prompt · blue: pushed up · orange: down", color=NEUTRAL)
    return canvas.chart(
        "The cut decides which opposite pushes meet in a step",
        "Sixteen rollouts of four prompts, cut into four optimizer steps. Whole prompts: both signs"
        " of a prompt meet in one step. Shuffled: some do. One sign: opposite pushes never meet.",
    )


def draw_reuse() -> alt.LayerChart:
    """One batch used for several steps: ratios start at 1, drift, and are clipped."""
    canvas = Canvas(height=310)
    draw = random.Random(2)
    for place, spread in enumerate((0, 0.11, 0.26)):
        left = 12 + 232 * place
        middle = left + 106

        def at(ratio: float, middle: float = middle) -> float:
            return middle + 200 * (ratio - 1)

        canvas.text(middle, 16, f"step {place + 1}", BIG, bold=True)
        canvas.box(at(0.8), 44, 80, 190, fill="#e9f1e0", edge="#e9f1e0")
        canvas.line((left, 234), (left + 212, 234), color="black")
        for count in range(12):
            ratio = 1 + spread * draw.uniform(-1.7, 1.7)
            is_inside = abs(ratio - 1) <= 0.2
            fill, edge = (ACCENT, ACCENT) if is_inside else ("white", NEUTRAL)
            canvas.dot(at(ratio), 58 + 14.5 * count, 6.5, fill, edge)
        for ratio in (0.8, 1, 1.2):
            canvas.text(at(ratio), 252, f"{ratio:g}", SMALL)
        if place < 2:
            canvas.arrow((left + 214, 140), (left + 230, 140), width=2)
    canvas.text(350, 290, "ratio new / old probability · hollow: beyond the clip", color=NEUTRAL)
    return canvas.chart(
        "Reuse a batch, and ratios drift until the clip acts",
        "Tokens of one batch by their ratio of new to old probability. In the first step all ratios"
        " are 1. In the second and third step on the same batch they spread; beyond 0.8 to 1.2 the"
        " clip can stop a token's push.",
    )


def draw_qlora() -> alt.LayerChart:
    """QLoRA: a frozen 4-bit base beside two thin matrices that are trained."""
    canvas = Canvas(height=330)
    canvas.box(8, 128, 74, 48, "input")
    canvas.box(176, 12, 250, 130, "base weights\n4 bits, frozen", _GREY_TINT, size=BIG)
    canvas.arrow((84, 144), (172, 80))
    canvas.arrow((428, 80), (518, 140))
    canvas.box(200, 186, 34, 120, fill="#d3e6ea", edge=ACCENT)
    canvas.box(296, 230, 120, 34, fill="#d3e6ea", edge=ACCENT)
    canvas.arrow((84, 160), (196, 240))
    canvas.arrow((236, 247), (292, 247))
    canvas.arrow((418, 246), (518, 164))
    canvas.text(350, 302, "adapter, trained", BIG, ACCENT, bold=True)
    canvas.dot(536, 152, 17, "white", text="+", size=BIG, bold=True)
    canvas.arrow((555, 152), (600, 152))
    canvas.box(604, 128, 84, 48, "output")
    canvas.arrow((640, 182), (444, 262), color=_SIGNAL, width=5, bend=24)
    canvas.text(584, 254, "gradient", BIG, _SIGNAL, bold=True)
    return canvas.chart(
        "QLoRA trains thin matrices beside a frozen 4-bit model",
        "The input goes through the base weights, stored in 4 bits and frozen, and through an"
        " adapter of two thin matrices; their outputs are added. Gradients change the adapter"
        " alone.",
    )


def draw_paired_runs() -> alt.LayerChart:
    """Pairs of runs from one seed; their differences are what counts."""
    canvas = Canvas(height=340)
    for x, head in [(60, "seed"), (260, "its two runs"), (580, "difference")]:
        canvas.text(x, 16, head, color=NEUTRAL)
    first, second, zero = SERIES[0], SERIES[1], 560
    canvas.line((zero, 40), (zero, 296), color=_GREY, width=2)
    ends = [(300, 356), (210, 252), (370, 432), (250, 260)]
    for place, (low, high) in enumerate(ends):
        y = 62 + 50 * place
        canvas.dot(60, y, 15, "black", text=str(place + 1), color="white", bold=True)
        canvas.line((78, y), (low, y), color=_GREY)
        canvas.line((low, y), (high, y), color="black", width=4)
        canvas.dot(low, y, 9, first, first)
        canvas.dot(high, y, 9, second, second)
        canvas.line((zero, y), (zero + high - low, y), color="black", width=4)
        canvas.dot(zero + high - low, y, 7, "black")
    mean = sum(high - low for low, high in ends) / len(ends)
    canvas.line((zero + mean - 32, 272), (zero + mean + 32, 272), color="black", width=3)
    canvas.dot(zero + mean, 272, 11, "black")
    canvas.text(300, 272, "mean and its interval", BIG, bold=True)
    canvas.text(zero, 314, "0", color=NEUTRAL)
    canvas.text(60, 318, "end value:", color=NEUTRAL, align="left")
    canvas.text(170, 318, "setting 1", color=first, bold=True, align="left")
    canvas.text(290, 318, "setting 2", color=second, bold=True, align="left")
    return canvas.chart(
        "Pair runs by seed: seeds differ more than settings",
        "Four seeds, each with one run under each of two settings. End values differ widely between"
        " seeds. The differences within pairs lie close together; their mean and interval answer.",
    )
