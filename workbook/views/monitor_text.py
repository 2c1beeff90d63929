"""What a monitor says of a run in words: its state, what is wrong with it, its newest completions."""

from __future__ import annotations

import pandas as pd

from workbook.training.diagnosis import diagnose
from workbook.views.monitor_chart import as_number, numbers
from workbook.views.style import escape, visible

STOPPING = "stopping after the step in hand ..."
MAX_DIAGNOSES = 3  # sentences below the curves of a sweep
TABLE = "border-spacing: 8px 2px; font-size: 12px; line-height: 1.35"
TEXT = "font-family: monospace; overflow-wrap: anywhere; unicode-bidi: isolate; vertical-align: top"


def seconds_left(metrics: pd.DataFrame, total: int, recent: int = 20) -> float | None:
    """Seconds until step `total` at the mean time of the most recent steps; None where step_time is not logged."""
    metrics = numbers(metrics)
    seconds = metrics["step_time"].tail(recent).mean() if "step_time" in metrics else float("nan")
    steps = total - int(metrics["step"].max()) if len(metrics) else 0
    return seconds * steps if steps > 0 and pd.notna(seconds) else None


def sentence(status: dict, metrics: pd.DataFrame, stopping: bool = False) -> str:
    """A run's state in words: what it does, how far it is, how long it will still take.

    >>> sentence({"state": "starting", "message": "Loading the policy."}, pd.DataFrame())
    'starting: Loading the policy ...'
    """
    state, message = status["state"], status["message"]
    if stopping:
        return STOPPING
    if state == "starting":
        return f"starting: {message.rstrip('.')} ..."
    if state != "running":
        return f"{state}: {message}"
    seconds = seconds_left(metrics, status["total"])
    time_left = ""
    if seconds is not None:
        time_left = f", about {seconds:.0f} s left" if seconds < 100 else f", about {seconds / 60:.0f} min left"
    return f"running: step {status['step']} of {status['total']}{time_left}. {message}"


def diagnoses(run, metrics: pd.DataFrame) -> list[str]:
    """What is wrong with a run, as its logged numbers tell; of a sweep the worst of each run, by its name.

    metrics: of a single run, as read last.
    """
    if not hasattr(run, "runs"):
        return diagnose(numbers(metrics))
    wrong = {name: sentences for name, one in run.runs.items() if (sentences := diagnose(numbers(one.metrics())))}
    lines = [f"{name}: {sentences[0]}" for name, sentences in list(wrong.items())[:MAX_DIAGNOSES]]
    more = len(wrong) - len(lines)
    return [*lines, f"{more} more of {len(run.runs)} runs have something wrong."] if more else lines


def completions_html(samples: pd.DataFrame) -> str:
    """The newest completions as an HTML table in which a model's text is text: no markup, nothing invisible.

    samples: columns step, prompt, completion, reward, advantage, as of `Run.samples`.
    """
    if not len(samples):
        return "<i>No completions yet.</i>"
    rows = []
    for row in samples.itertuples():
        texts = (escape(visible(text, 500, space=" ")) for text in (row.prompt, row.completion))
        cells = "".join(f'<td dir="ltr" style="{TEXT}">{text}</td>' for text in texts)
        reward, advantage = as_number(row.reward), as_number(row.advantage)
        rows.append(f"<tr><td>{reward:.3g}</td><td>{advantage:+.2f}</td>{cells}</tr>")
    names = ("reward", "advantage", "prompt", "completion")
    head = "".join(f'<th style="text-align: left">{name}</th>' for name in names)
    step = escape(samples["step"].iloc[0])
    caption = f'<caption style="text-align: left">Some completions sampled for step {step}</caption>'
    return f'<table style="{TABLE}">{caption}<thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
