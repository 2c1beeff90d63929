"""A report: findings against numbers worked by hand, warnings with their number, the page, the model, the command."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.__main__ import main
from workbook.book.report_page import default_page, report_page, report_text, write_report
from workbook.policies.load import load_policy
from workbook.probes import model_findings, report_findings, report_warnings
from workbook.probes import report_rules as rules
from workbook.probes.report import mean_interval
from workbook.probes.report_tokens import against_share
from workbook.rollouts import output_states, sample_rollouts
from workbook.tasks import get_task

COMPLETIONS = Path(__file__).parent / "data" / "completions"


def table_of(*rollouts: dict, **columns) -> pd.DataFrame:
    """Rows of rollouts {tokens, group, step, and a number or a list for each column}."""
    parts, numbers = [], {}
    for rollout in rollouts:
        step = rollout.get("step", 1)
        numbers[step] = numbers.get(step, -1) + 1
        tokens = rollout["tokens"].split()
        part = {"step": step, "group": 0, "rollout": numbers[step], "position": range(len(tokens))}
        parts.append(pd.DataFrame(part | rollout | columns | {"tokens": tokens}).rename(columns={"tokens": "token"}))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture
def pair() -> pd.DataFrame:
    """A group of two: "a b c" with weight 1/2 and advantage 1, "a d b" with weight 1/4 and advantage -1."""
    return table_of(
        {"tokens": "a b c", "reward": 1.0, "advantage": 1.0, "push": 0.5},
        {"tokens": "a d b", "reward": 0.0, "advantage": -1.0, "push": -0.25},
    )


def test_pushes_of_a_pair_by_hand(pair):
    report = report_findings(pair)
    tokens = report.tokens.set_index("token")
    assert tokens.loc["a", ["count", "positive", "negative", "up", "down", "net", "total"]].tolist() == [
        *(2, 1, 1),
        *(0.5, -0.25, 0.25, 0.75),
    ]
    assert tokens.loc["a", "cancelled"] == pytest.approx(1 - 0.25 / 0.75)
    assert tokens.loc["d", ["net", "cancelled"]].tolist() == [-0.25, 0.0]
    shared = report.shared.set_index("shared")
    # a at position 0 is the one shared place; b is under both signs elsewhere; c and d are under one
    assert shared["tokens"].tolist() == pytest.approx([2 / 6, 2 / 6, 2 / 6])
    assert shared["push"].tolist() == pytest.approx([0.75 / 2.25] * 3)
    assert shared["cancelled"].tolist() == pytest.approx([2 / 3, 2 / 3, 0])


def test_residuals_of_a_pair_by_hand(pair):
    residuals = report_findings(pair).residuals
    assert residuals[["places", "whole"]].to_numpy().tolist() == [[1, 1]]
    assert residuals["residual"].tolist() == pytest.approx([1 / 3])  # (0.5 - 0.25) / 0.75
    assert residuals[["equal", "whole_equal"]].to_numpy().tolist() == [[0, 0]]
    third = {"tokens": "x y z", "rollout": 2, "reward": 0.0, "advantage": 0.0, "push": 0.0}
    residuals = report_findings(pd.concat([pair, table_of(third)])).residuals
    assert residuals[["places", "whole"]].to_numpy().tolist() == [[1, 0]]  # a is not in all of the group
    assert residuals["residual"].tolist() == pytest.approx([1 / 3])


def test_what_is_missing_is_derived_and_said():
    table = table_of(
        {"tokens": "a b", "reward": 1.0, "ratio": 1.5, "stopped": ["", "clip high"]},
        {"tokens": "a c", "reward": 0.0, "ratio": 0.5, "stopped": ""},
    )
    report = report_findings(table)
    assert report.notes == [
        "The file has no advantages: they are each rollout's reward minus its group's mean.",
        "The file has no weights as trained: a push here is the advantage x ratio, 0 where stopped.",
    ]
    assert report.tokens.set_index("token")["net"].to_dict() == {"a": 0.5, "b": 0.0, "c": -0.25}
    mass = report.stopped.set_index(["reason", "sign"])["mass"]
    assert mass.to_dict() == {("", "negative"): 0.5, ("", "positive"): 0.25, ("clip high", "positive"): 0.25}
    assert set(report.missing) == {"entropy", "movement"}
    assert report.missing["entropy"].startswith("The file has no column entropy; train with record_tokens: 10")
    for column in ("reward", "token"):
        with pytest.raises(ValueError, match=f"a report needs the column {column}"):
            report_findings(table.drop(columns=column))


def test_infinite_numbers_are_unknown_and_said():
    table = table_of(
        {"tokens": "a b", "reward": 1.0, "advantage": np.inf},
        {"tokens": "a d", "reward": 0.0, "advantage": -1.0},
    )
    report = report_findings(table)
    assert report.tokens.set_index("token")["net"].to_dict() == {"a": -1.0, "b": 0.0, "d": -1.0}
    assert report.notes[0] == "2 tokens have an infinite advantage, which was taken as unknown."
    assert not re.search(r"\b(nan|inf)\b", report_text(report))
    bounded = report_findings(table.assign(advantage=-np.inf, reward=[1.0, 1.0, 0.0, 0.0]))
    assert bounded.notes[1].startswith("The file has no advantages")


def test_a_mean_of_equal_rewards_is_no_advantage():
    table = table_of(*({"tokens": "a", "reward": 0.1} for _ in range(3)))
    assert report_findings(table).tokens["total"].tolist() == [0.0]


def test_groups_by_step():
    rewards = {1: [(1, 0), (1, 1)], 2: [(0, 0), (0, 0)]}
    table = table_of(
        *(
            {"tokens": "a", "step": step, "group": group, "reward": float(reward)}
            for step, groups in rewards.items()
            for group, pair in enumerate(groups)
            for reward in pair
        )
    )
    report = report_findings(table)
    columns = ["step", "groups", "signal", "highest", "lowest", "one"]
    assert report.signal[columns].to_numpy().tolist() == [[1, 2, 0.5, 0.5, 0, 0], [2, 2, 0, 0, 1, 0]]
    assert report.signal_share.mean == 0.25
    assert np.isnan(report.signal_share.low)  # four groups in two steps
    warned = next(w for w in report_warnings(report) if w.name == "one reward")
    assert warned.sentence == "75 % of groups had one reward only: nothing was learned from them."
    assert warned.advice.startswith("Raise the temperature")
    advice = [w.advice for w in report_warnings(report_findings(table[table["step"] == 2].assign(advantage=0.0)))]
    assert advice[0].startswith("Raise the temperature")  # of one reward alone nobody knows whether it is the lowest
    advice = [w.advice for w in report_warnings(report_findings(table.query("step == 2 or group == 0")))]
    assert advice[0] == "67 % have the lowest reward throughout: pick easier prompts, or sample larger groups."


def test_an_interval_needs_six_units():
    values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    interval = mean_interval(values)
    half = 2.570582 * np.std(values, ddof=1) / 6**0.5  # t with 5 degrees of freedom
    assert interval == pytest.approx((2.5, 2.5 - half, 2.5 + half), rel=1e-6)
    assert np.isnan(mean_interval(values[:5]).low)


def test_a_share_of_tokens_weighs_each_token_alike():
    """Three negative tokens that moved with their push at step 1, one positive token against it at step 2."""
    moved = {"logp": -1.0, "reward": 0.0}
    table = table_of(
        {"tokens": "a b c", "advantage": -1.0, "push": -0.5, "logp_after": -1.5} | moved,
        {"tokens": "a", "step": 2, "advantage": 1.0, "push": 0.5, "logp_after": -1.5} | moved,
    )
    report = report_findings(table)
    assert report.movement["moved"].tolist() == [3, 1]
    assert against_share(report.movement) == 0.25
    assert "; 25 % of the pushed tokens that moved" in report_text(report)
    assert "against" not in [warned.name for warned in report_warnings(report)]
    still = report_text(report_findings(table.assign(logp_after=-1.0)))
    assert "nats on tokens of negative advantage.\n" in still


def test_movement_and_length_by_hand():
    table = table_of(
        {"tokens": "a b", "advantage": 1.0, "push": 1.0, "logp": -1.0, "logp_after": [-0.5, -1.25], "entropy": 0.5},
        {"tokens": "a b c d", "advantage": -1.0, "push": -1.0, "logp": -1.0, "logp_after": -1.5, "entropy": 1.0},
    )
    report = report_findings(table)
    movement = report.movement.set_index("sign")
    assert movement.loc["positive", ["entropy", "change", "against"]].tolist() == [0.5, 0.125, 0.5]
    assert movement.loc["negative", ["entropy", "change", "against"]].tolist() == [1.0, -0.5, 0.0]
    lengths = report.lengths.set_index("sign")
    assert lengths["length"].to_dict() == {"positive": 2.0, "negative": 4.0}
    assert report.length_gap.mean == 2.0
    assert "length" in {w.name for w in report_warnings(report)}
    table.attrs["objective"] = {"loss_type": "dr_grpo"}  # which does not divide by length
    assert "length" not in {w.name for w in report_warnings(report_findings(table))}


def alarming(**changes) -> pd.DataFrame:
    """Thirty-two groups of two that no rule warns of, but for the changes, by column."""
    rows = []
    for group in range(32):
        for sign, words in ((1.0, "a b c d e f g h"), (-1.0, "a b c d x f y z")):
            row = {"tokens": words, "group": group, "reward": (sign + 1) / 2, "advantage": sign, "push": sign}
            row |= {"ratio": 1.0, "importance": 1.0, "stopped": "", "logp": -1.0, "logp_after": -1.0 + 0.1 * sign}
            rows.append(row | {"entropy": 1.0, "step": 1 + group // 16})
    table = table_of(*rows)
    for name, change in changes.items():
        table[name] = change(table)
    return table


def stop(reason, positions, sign):
    return lambda t: np.where((t["position"] < positions) & (t["advantage"] * sign > 0), reason, "")


ALARMS = {
    "repeats": {"token": lambda t: t["position"].astype(str)},
    "clipped": {"stopped": stop("clip high", 2, 1)},
    "truncated": {"stopped": stop("truncated", 8, 1)},
    "masked": {"stopped": stop("entropy", 4, -1)},
    "importance": {"importance": lambda t: 0.7},
    "ratio": {"ratio": lambda t: np.where(t["position"] == 7, 2.0, 1.0)},
    "unequal weights": {"push": lambda t: t["push"].where(t["push"] > 0, -0.5)},
    "cut groups": {
        "advantage": lambda t: t["advantage"].where(t["advantage"] > 0, -0.5),
        "push": lambda t: t["advantage"],
    },
    "against": {"logp_after": lambda t: -1.0 - 0.1 * t["advantage"]},
    "entropy": {"entropy": lambda t: 1.0 / t["step"] ** 2},
    "groups": {"group": lambda t: t["group"] % 4},
}
NUMBERS = {
    "repeats": ("50 %", 0.5),
    "clipped": ("12 % of all advantage, more of it at the upper bound", 1 / 8),
    "truncated": ("50 %", 0.5),
    "masked": ("25 % of all advantage, 25 % by entropy", 0.25),
    "importance": ("0.70 instead of 1", 0.7),
    "ratio": ("from 1.00 to 2.00", 1.0),
    "unequal weights": ("33 % of its push stays, and only 0 %", 1 / 3),
    "cut groups": ("leave 33 %", 1 / 3),
    "against": ("100 %", 1.0),
    "entropy": ("75 %, from 1.000 nats at step 1 to 0.250", 0.75),
    "groups": ("There are 8 groups only", 8),
}


def test_nothing_is_warned_of_without_reason():
    assert report_warnings(report_findings(alarming())) == []


@pytest.mark.parametrize("name", ALARMS)
def test_each_warning_has_its_number(name):
    warnings = {warned.name: warned for warned in report_warnings(report_findings(alarming(**ALARMS[name])))}
    text, number = NUMBERS[name]
    assert text in warnings[name].sentence
    assert warnings[name].value == pytest.approx(number)
    assert warnings[name].advice.endswith(".")
    allowed = {"repeats": {"groups", "cut groups", "length"}, "groups": {"one reward", "repeats"}}
    assert set(warnings) - {name} <= allowed.get(name, set())


def test_every_rule_is_tried():
    assert len(rules.RULES) == len({*ALARMS, "one reward", "length"})


# --- the page


class Page(HTMLParser):
    """Elements, the texts between them, and what is loaded from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.loaded = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.loaded += [v for k, v in attributes if k in ("src", "href") and not v.startswith(("data:", "#"))]

    def handle_data(self, data):
        self.texts.append(data)


def hostile() -> pd.DataFrame:
    table = alarming()
    names = {"a": "</td><script>alert(1)</script>", "b": "\x1b[31m\u202e", "c": "\ud800"}
    table["token"] = pd.Series([names.get(token, token) for token in table["token"]], dtype=object)
    table["prompt"] = "<img src=x onerror=alert(1)>"
    table.attrs["source"] = {"path": "/tmp/<b>run</b>", "format": "token tables", "groups": "file", "tokens": "file"}
    table.attrs["objective"] = {"loss_type": "<i>grpo</i>", "epsilon_low": 0.2}
    return table


def test_a_page_needs_nothing_and_runs_nothing():
    text = report_page(report_findings(hostile()), "What training did")
    page = Page(text)
    assert page.loaded == []
    assert not {"script", "iframe", "object", "b", "i"} & set(page.elements)
    assert page.elements.count("img") == 5  # signal, tokens, residuals, entropy, movement
    assert "alert(1)</script>" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<i>grpo</i>" in "".join(page.texts)  # as text
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'aria-labelledby="([^"]*)"', text)) <= set(ids)
    assert text.encode()


def test_a_page_without_signs_or_columns_still_says_what_is_missing():
    report = report_findings(table_of({"tokens": "a b", "reward": 1.0}, {"tokens": "a b", "reward": 1.0, "group": 1}))
    text = " ".join("".join(Page(report_page(report, "x")).texts).split())
    for sentence in (
        "No two rollouts are known to be of one prompt; give the file a column group, or prompt.",
        "The file has no column stopped; train with record_tokens: 10, or write the column into the file.",
        "No token was pushed.",
        "No rollout has an advantage.",
    ):
        assert sentence in text


def test_a_token_written_from_right_to_left_ends_its_sentence(pair):
    text = report_text(report_findings(pair.assign(token="\u0627")))
    assert "\n- The largest net push, +0.75 of a sum of |push| of 2.25 in 6 places, is on \u0627\n" in text


def test_the_text_has_the_warnings():
    report = report_findings(alarming(**ALARMS["clipped"]))
    lines = report_text(report).split("\n")
    assert lines[0] == "2 steps, 32 groups, 64 rollouts, 512 tokens"
    assert lines[-2:] == ["1 warning:", f"1. {report_warnings(report)[0]}"]
    assert report_text(report_findings(alarming())).split("\n")[-1] == "No warnings"
    assert "\x1b" not in report_text(report_findings(hostile()))


# --- with a model


@pytest.fixture(scope="module")
def sampled():
    """(policy, rollouts, their table with prompts)."""
    policy = load_policy("bundled")
    rollouts = sample_rollouts(policy, get_task("chain"), 2, 4, seed=1, estimator="dr_grpo")
    table = rollouts.token_table()
    return policy, rollouts, table.assign(step=3, prompt=[rollouts.prompts[i] for i in table["rollout"]])


def test_a_model_scores_what_it_has_sampled(sampled):
    policy, _, table = sampled
    findings = model_findings(table, policy)
    np.testing.assert_allclose(findings.scored["model_logp"], table["logp"], atol=1e-5)
    np.testing.assert_allclose(findings.scored["model_entropy"], table["entropy"], atol=1e-5)
    assert findings.notes == []


def test_pulls_are_the_kernel_times_pushes(sampled):
    policy, rollouts, table = sampled
    groups = table.groupby("group")["advantage"]
    group = next(number for number, advantages in groups if advantages.min() < 0 < advantages.max())
    part = table[table["group"] == group].reset_index(drop=True)
    findings = model_findings(part, policy)
    states = output_states(policy, rollouts.select(rollouts.group_ids == group))
    moved = states.kernel() * torch.tensor(part["advantage"].to_numpy(), dtype=torch.float32)  # row i, by column j
    negative, positive = (torch.tensor((sign * part["advantage"] > 0).to_numpy()) for sign in (-1, 1))
    for row in findings.undone.itertuples():
        here = positive & torch.tensor((part["token"] == row.token).to_numpy())
        assert row.down == pytest.approx(moved[here][:, negative].sum().item(), rel=1e-3, abs=1e-3)
        assert row.up == pytest.approx(moved[here][:, positive].sum().item(), rel=1e-3, abs=1e-3)
    assert len(findings.undone) > 5
    worst = findings.pulls.iloc[0]
    by, on = (torch.tensor((part["token"] == worst[name]).to_numpy()) for name in ("negative", "positive"))
    text = part["token"].to_numpy()
    same = torch.tensor(part["position"].to_numpy())
    same = (same[:, None] == same[None]) & torch.tensor(text[:, None] == text)
    chosen = (on & positive)[:, None] & (by & negative)[None] & (same == bool(worst["same_place"]))
    assert worst["pull"] == pytest.approx(moved[chosen].sum().item(), rel=1e-3)
    assert worst["pairs"] == int(chosen.sum())


def test_a_model_that_does_not_fit_is_refused(sampled):
    policy, _, table = sampled
    with pytest.raises(ValueError, match="a model needs token ids"):
        model_findings(table.drop(columns="token_id"), policy)
    with pytest.raises(ValueError, match="a model needs the prompts"):
        model_findings(table.drop(columns="prompt"), policy)
    with pytest.raises(ValueError, match=r"has the token id 90000, and bundled has \d+ tokens"):
        model_findings(table.assign(token_id=90_000), policy)
    with pytest.raises(ValueError, match="whole rollouts"):
        model_findings(table[table["position"] > 0], policy)
    notes = model_findings(table.assign(token="other"), policy).notes
    assert notes == ["Of the tokens' texts 100 % are others in this model: is it the one of this run?"]


# --- the command


def test_the_command_writes_a_page(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["report", str(COMPLETIONS), "--model", "bundled", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 steps, 8 groups, 32 rollouts, ")
    assert out.endswith(f"The report as a page lies in {page}\n")
    assert "Which correct tokens negative ones pull down" in page.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_where_a_page_goes(tmp_path):
    (tmp_path / "tokens").mkdir()
    assert default_page(tmp_path / "tokens") == default_page(tmp_path) == tmp_path / "report.html"
    (tmp_path / "a.jsonl").touch()
    assert default_page(tmp_path / "a.jsonl") == tmp_path / "report.html"
    write_report(report_findings(alarming()), tmp_path / "report.html")
    assert default_page(tmp_path) == tmp_path / "report.html"  # ours is written anew
    (tmp_path / "report.html").write_text("<p>mine</p>")
    with pytest.raises(ValueError, match="is there and is no report; give another file with --html"):
        default_page(tmp_path)
    with pytest.raises(ValueError, match="there is no file or folder"):
        default_page(tmp_path / "none")


def test_a_mistake_is_one_sentence(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "p", "completion": "c"}) + "\n")
    assert main(["report", str(tmp_path / "a.jsonl")]) == 2
    assert capsys.readouterr().err == "a.jsonl, line 1: has neither a reward nor an advantage.\n"
    assert not (tmp_path / "report.html").exists()
    assert main(["report", str(tmp_path / "a.jsonl"), "--html", str(tmp_path / "no" / "a.html")]) == 2
    assert "--html" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "a.jsonl"), "--html", str(tmp_path / "." / "a.jsonl")]) == 2
    assert capsys.readouterr().err == f"--html {tmp_path / 'a.jsonl'} is the file that is read; give another.\n"
