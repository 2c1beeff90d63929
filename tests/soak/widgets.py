"""Widgets and charts over hostile texts: made, updated, drawn and closed by the thousand."""

from __future__ import annotations

import gc
import json
import random
import weakref
from itertools import count

import altair as alt
import numpy as np
import pandas as pd
import psutil
import torch

from workbook.rollouts.states import OutputStates
from workbook.views import Explorer, LiveChart, TokenHeatmap, learning_curve
from workbook.views.explorer import slider
from workbook.views.live import close, rows
from workbook.views.monitor import RunMonitor
from workbook.views.renderer import bundle, to_spec
from workbook.views.style import HALVES

PROMISE = (
    "Whatever text is in it, a widget gives a picture or a sentence, sends only valid text, and is freed once closed; "
    "memory grows by less than 2 MiB per 1,000."
)
TRIALS = 2000
WARM_UP, EVERY, SLACK_MIB = 400, 100, 4.0  # trials before memory counts, between two looks; noise of one look

PIECES = [
    *map(chr, range(0x20)),
    *("\x7f", "\x85", "\xa0", "\u200b", "\u202e", "\u2066", "\u2028", "\ufeff", "\ufffd", "\ufffe", "\uffff"),
    *("\ud800", "\udc80", "\udfff", "\U0001f600", "\U0001fffe", "\U0010ffff", "e\u0301", "\U000e0041"),
    *("<script>window.owned=1</script>", "<img src=x onerror=window.owned=1>", "\"'&<b>", "]]>", "<!--", "&#0;"),
    *("' + atob('AA==') + '", "datum['x']", "\\u0000", "%00", "{x}", "%s", "${x}", "null", "NaN", "1e999", ""),
    *(" the", "7", "x" * 3000),
]


def text(rng: random.Random) -> str:
    """One hostile text of up to four pieces."""
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 4)))


def column(rng: random.Random, n: int) -> pd.Series:
    """n hostile texts as a column: of objects, since what is no character fits into no other."""
    return pd.Series([text(rng) for _ in range(n)], dtype=object)


def number(rng: random.Random) -> float:
    """A number as logs and tables may hold it."""
    return rng.choice([0.0, -1.0, rng.gauss(0, 1), 1e300, -1e-300, float("nan"), float("inf"), -float("inf")])


def trials(seed: int):
    """Kinds by turns, each with a seed of its own."""
    for number_ in count():
        kind = list(KINDS)[number_ % len(KINDS)]
        yield f"{kind}-{seed}-{number_}", (kind, seed * 1_000_003 + number_)


def attempt(_folder, kind: str, seed: int) -> str | None:
    """Make, update, draw and close one widget; then look at what it left."""
    if _trials == 0:
        gc.freeze()  # the libraries: what is collected below is the trial's
    references = [weakref.ref(thing) for thing in KINDS[kind](random.Random(seed))]
    gc.collect()
    if alive := [type(thing()).__name__ for thing in references if thing() is not None]:
        return f"closed, and still there: {', '.join(alive)}"
    return memory_finding()


def heatmap(rng: random.Random) -> list:
    n = rng.randint(1, 12)
    table = pd.DataFrame(
        {
            "group": [rng.randint(0, 1) for _ in range(n)],
            "rollout": [rng.randint(0, 3) for _ in range(n)] if rng.random() < 0.5 else column(rng, n),
            "position": range(n),
            "token": column(rng, n),
            "advantage": [number(rng) for _ in range(n)],
            "category": column(rng, n).where(np.array([rng.random() < 0.8 for _ in range(n)])),
            HALVES.sub("", text(rng)) or "other": [number(rng) for _ in range(n)],
            **{name: column(rng, n) for name in ("stopped", "prompt") if rng.random() < 0.5},
            **{name: [number(rng) for _ in range(n)] for name in ("ratio", "push", "logp", "logp_after", "old_logp")},
        }
    )
    values = (number(rng), text(rng), None, {"0": number(rng)}, "dr_grpo", "vespo", "sequence", "min_replace", 10**400)
    names = ("loss_type", "level", "epsilon_low", "epsilon_high", "delta", "clipping", "group_transform", "normalizer")
    table.attrs["objective"] = {name: rng.choice(values) for name in names} | {
        "loss_type": rng.choice(["grpo", "sapo", "vespo", "cispo", text(rng)])
    }
    states = OutputStates(torch.randn(n, 4), torch.randn(n, 9), torch.randint(9, (n,)), rng.choice([None, 3.0]))
    widget = TokenHeatmap(table, rng.choice(["advantage", "category"]), states=states)
    widget.pinned = rng.randint(-1, n)
    check(widget, widget.picture())
    widget.group = rng.choice(widget.groups)
    widget.pinned = 0
    widget.column = rng.choice(["coupling", "category", *(str(column["name"]) for column in widget.columns)])
    check(widget)
    widget.to_html().encode()
    widget.close()
    return [widget, states]


def live_chart(rng: random.Random) -> list:
    n = rng.randint(0, 6)
    curve = pd.DataFrame({"step": range(n), "reward": [number(rng) for _ in range(n)]})
    widget = LiveChart(learning_curve(curve.assign(run=[HALVES.sub("", text(rng)) for _ in range(n)])))
    check(widget, widget.picture())
    widget.update(learning_curve(curve.assign(run=[HALVES.sub("", text(rng)) for _ in range(n)]), target=rng.random()))
    check(widget, widget.picture())
    close(widget)
    return [widget]


def compute_texts(n: int = 2, seed: int = 0) -> pd.DataFrame:
    """What a reader's own explorer may show: texts."""
    rng = random.Random(seed)
    if n > 5:
        raise ValueError(text(rng))
    return pd.DataFrame({"x": range(n), "y": [number(rng) for _ in range(n)], "name": column(rng, n)})


def text_chart(table: pd.DataFrame) -> alt.Chart:
    return alt.Chart(table).mark_text().encode(x="x:Q", y="y:Q", text="name:N", color="name:N")


def explorer(rng: random.Random) -> list:
    controls = {"n": slider(2, 0, 9, 1, "n"), "seed": slider(rng.randint(0, 999), 0, 1000, 1, "seed")}
    widget = Explorer(compute_texts, text_chart, controls, describe=lambda table: " ".join(table["name"]))
    for _ in range(3):
        widget.set(n=rng.randint(0, 9), seed=rng.randint(0, 1000))
    check(widget.sentence)
    check(widget.snippet)
    check(widget.chart, widget.chart.picture())
    widget.close()
    return [widget, widget.chart]


class HostileRun:
    """A run whose log and samples hold anything at all."""

    stopping = False

    def __init__(self, rng: random.Random):
        self.rng, self.looks = rng, 0

    def cell(self):
        return self.rng.choice([number(self.rng), number(self.rng), text(self.rng), None, [1], {"a": 1}, True, 10**400])

    def metrics(self) -> pd.DataFrame:
        columns = ["reward", "grad_norm", "entropy", "num_tokens", "step_time", "clip_ratio/region_mean"]
        rows = [{"step": k + 1} | {c: self.cell() for c in columns} for k in range(self.looks)]
        if self.rng.random() < 0.2:
            rows.append({"step": self.cell(), "reward": 0.5})
        return pd.DataFrame(rows, columns=["step", *columns], dtype=object)

    def samples(self) -> pd.DataFrame:
        names = ["step", "prompt", "completion", "reward", "advantage"]
        return pd.DataFrame([{name: self.cell() for name in names} for _ in range(2)], columns=names, dtype=object)

    def status(self) -> dict:
        self.looks += 1
        state = "finished" if self.looks > 3 else "running"
        return {"state": state, "step": self.looks, "total": 4, "message": text(self.rng), "pid": -1}


def monitor(rng: random.Random) -> list:
    name = pd.Series([text(rng)] * 2, dtype=object)
    beside = rng.choice([None, pd.DataFrame({"step": [1, 2], "reward": [0.1, number(rng)], "run": name})])
    widget = RunMonitor(HostileRun(rng), beside=beside, interval=0.001)
    widget._follow()
    widget._thread.join(20)
    if "can&#x27;t be read" in widget.line.value:
        raise ValueError(widget.line.value)
    for part in (widget.line, widget.completions):
        check(part)
    check(widget.chart, widget.chart.picture())
    widget.close()
    return [widget, widget.chart]


def own_chart(rng: random.Random) -> list:
    """A reader's chart of tokens, or of anything that Vega-Lite takes, shown as it is."""
    n = rng.randint(1, 5)
    table = pd.DataFrame({"token": column(rng, n), "x": [number(rng) for _ in range(n)]})
    y = alt.Y("token:N", title=text(rng))
    chart = alt.Chart(table, title=text(rng)).mark_bar(tooltip=True).encode(x="x:Q", y=y)
    spec = to_spec(chart.properties(width=rng.choice([200, 0, 1]), description=text(rng)))
    data, about = bundle(spec)
    sendable([data, about])
    drawn(data)
    rows(table.rename(columns={"x": HALVES.sub("", text(rng))}))
    return []


KINDS = {f.__name__: f for f in (heatmap, live_chart, explorer, monitor, own_chart)}


def check(widget, picture: tuple[dict, dict] | None = None) -> None:
    """Raise unless all that the widget sends is valid text, and it is drawn or a sentence says why not."""
    sendable({key: value for key, value in widget.get_state().items() if not isinstance(value, bytes)})
    if picture is not None:
        sendable(picture)
        drawn(picture[0])


def sendable(message) -> None:
    json.dumps(message, ensure_ascii=False, allow_nan=False, default=str).encode("utf-8")


def drawn(data: dict) -> None:
    if "image/png" not in data and "No picture of this chart: " not in data["text/plain"]:
        raise ValueError("neither a picture nor a sentence")


_trials, _warm = 0, None


def memory_finding() -> str | None:
    """One sentence if this process has grown by more than 2 MiB per 1,000 trials since it was warm."""
    global _trials, _warm
    _trials += 1
    if _trials % EVERY or _trials < WARM_UP:
        return None
    gc.collect()
    mib = psutil.Process().memory_info().rss / 2**20
    if _warm is None:
        _warm = (_trials, mib)
    made = _trials - _warm[0]
    grown = mib - _warm[1]
    print(f"    {_trials} trials: {mib:,.1f} MiB", flush=True)
    if grown > 2.0 * made / 1000 + SLACK_MIB:
        return f"memory has grown by {grown:.1f} MiB in {made} trials"
    return None
