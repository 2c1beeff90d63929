"""Make tokens.png: rollouts A and B, what GRPO pays each word, what it deserved, how far it moved.

    python data/pictures/make_tokens.py        a few seconds on a CPU

The step is chapter 05's: one step of SGD on A and B together, under the example's committed policy,
that moves their tokens by 0.1 nats (root mean square). Words between two numbers that decide
something share a cell, which shows the largest of their values by size.
"""

from pathlib import Path

from workbook import example_policy, example_rollouts, matched_lr
from workbook.probes import exact_credit, token_flips
from workbook.rollouts.example import TASK
from workbook.views.canvas import Canvas
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, png, to_spec

PICTURE = Path(__file__).resolve().parent / "tokens.png"
WIDTH, HEIGHT = 860, 556
LEFT, GAP, ROW = 156, 5, 48
TYPE = 27
# the cells of a rollout: how many tokens each holds, its width, and what it shows of their words
CELLS = [(9, 118), (1, 61), (6, 158), (1, 61), (5, 214), (2, 61)]
ROWS = {"paid": "advantage", "deserved": "credit", "moved": "dlogp"}


def measured_tokens():
    """The token table of A and B with columns dlogp (nats) and credit (reward)."""
    policy, pair = example_policy(), example_rollouts()
    table = token_flips(policy, pair, "sgd", matched_lr(policy, pair, "sgd", target=0.1))
    alive = pair.completion_mask.bool()
    return table.assign(credit=exact_credit(policy, TASK, pair)[alive].double().numpy())


def words_of(tokens) -> str:
    """A cell's words; of the first, whose words both rollouts share, the last ones."""
    words = [word for word in tokens["token"].str.strip() if word != "<eos>"]
    return "… " + " ".join(words[-4:]) if len(words) > 6 else " ".join(words)


def tint(share: float) -> str:
    """White at 0, blue at 1, orange at -1."""
    full = POSITIVE if share > 0 else NEGATIVE
    parts = (int(full[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * abs(share)):02x}" for part in parts)


def draw_rollout(canvas: Canvas, top: float, name: str, tokens, largest: dict) -> None:
    """One rollout: its words, and below them a row of cells for each of ROWS."""
    outcome = "right" if tokens["reward"].iloc[0] else "wrong"
    canvas.text(14, top, f"{name} is {outcome}", TYPE - 2, bold=True, align="left")
    for row, label in enumerate(ROWS):
        canvas.text(14, top + ROW * (row + 1), label, TYPE, align="left")
    x, start = LEFT, 0
    for count, width in CELLS:
        cell = tokens.iloc[start : start + count]
        canvas.text(x + width / 2, top, words_of(cell), TYPE, bold=count < 3)
        for row, column in enumerate(ROWS.values()):
            value = cell[column].loc[cell[column].abs().idxmax()]
            draw_cell(canvas, x, top + ROW * (row + 1), width, value, value / largest[column])
        x, start = x + width + GAP, start + count


def draw_cell(canvas: Canvas, x: float, y: float, width: float, value: float, share: float) -> None:
    """A value in its colour; what rounds to nothing stays white and empty."""
    is_nothing = abs(value) < 0.005
    fill = "white" if is_nothing else tint(share)
    canvas.box(x, y - ROW / 2 + 3, width, ROW - 6, fill=fill, edge="#b5b5b5")
    number = f"{value:+.2f}".replace("0.", ".").replace("-", "−")
    text = "0" if is_nothing else number
    ink = "white" if abs(share) > 0.6 else "black"
    canvas.text(x + width / 2, y, text, 24, NEUTRAL if is_nothing else ink)


def main() -> None:
    table = measured_tokens()
    largest = {column: table[column].abs().max() for column in ROWS.values()}
    canvas = Canvas(HEIGHT, WIDTH)
    canvas.text(14, 26, "GRPO pays every word of an answer the same.", 35, bold=True, align="left")
    canvas.text(14, 70, "Its step moves the word that decided.", 35, bold=True, align="left")
    for place, (rollout, tokens) in enumerate(table.groupby("rollout")):
        draw_rollout(canvas, 128 + 212 * place, "AB"[rollout], tokens, largest)
    legend = "paid: advantage · deserved: credit · moved: nats, one step"
    canvas.text(14, HEIGHT - 18, legend, 24, NEUTRAL, align="left")
    chart = canvas.chart("A and B", "Word by word.").properties(width=WIDTH)
    spec = to_spec(chart)
    del spec["title"]
    PICTURE.write_bytes(png({**spec, "background": "white"}))
    print(table[["rollout", "token", *ROWS.values()]].round(3).to_string())


if __name__ == "__main__":
    main()
