"""The report on a run: what TRL's completions and metrics, or a run's own token tables, tell."""

import pandas as pd
import pytest
from refusals import refused

from workbook.app import load_run, report_findings, report_text, report_warnings
from workbook.app.report import SHARED
from workbook.places import data_path
from workbook.rollouts import read_rollouts


def log(folder, rows, name="log.jsonl"):
    frame = pd.DataFrame(rows)
    if name.endswith(".csv"):
        frame.to_csv(folder / name, index=False)
    elif name.endswith(".parquet"):
        frame.to_parquet(folder / name)
    elif name.endswith(".table.json"):  # wandb's
        frame.to_json(folder / name, orient="split", index=False)
    else:
        frame.to_json(folder / name, orient="records", lines=name.endswith("l"))
    return folder / name


ROWS = [
    {"prompt": "2 + 2 =", "completion": "it is 4", "reward": 1.0, "completion_ids": [1, 2, 4]},
    {"prompt": "2 + 2 =", "completion": "it is 5", "reward": 0.0, "completion_ids": [1, 2, 5]},
    {"prompt": "2 + 3 =", "completion": "is 4 4 4", "reward": 0.0, "completion_ids": [2, 4, 4, 4]},
    {"prompt": "2 + 3 =", "completion": "is 4 4 4", "reward": 0.0, "completion_ids": [2, 4, 4, 4]},
]


@pytest.mark.parametrize(
    "name", ["log.jsonl", "log.json", "log.table.json", "log.csv", "log.parquet"]
)
def test_logs_of_every_form_are_one_table(tmp_path, name):
    table = read_rollouts(log(tmp_path, ROWS, name))
    assert table["token_id"].tolist() == [1, 2, 4, 1, 2, 5, 2, 4, 4, 4, 2, 4, 4, 4]
    assert table["group"].tolist() == [0] * 6 + [1] * 8
    assert table["position"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3]
    assert table.attrs["source"]["tokens"] == "ids"


def test_a_csv_of_texts_is_cut_into_words(tmp_path):
    texts = pd.DataFrame(ROWS).drop(columns="completion_ids")
    table = read_rollouts(log(tmp_path, texts, "log.csv"))
    assert (table.attrs["source"]["tokens"], *table["token"][:3]) == ("words", "it", " is", " 4")


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv"])
def test_a_folder_of_verls_dump_is_read_step_by_step(tmp_path, ending):
    (tmp_path / "config.json").write_text("{}")
    names = {"prompt": "input", "completion": "output", "reward": "score"}
    for step in (10, 1, 2):
        rows = (
            pd.DataFrame(ROWS).drop(columns="completion_ids").rename(columns=names).assign(acc=1.0)
        )
        log(tmp_path, rows.assign(output=rows["output"] + " ok" * step), f"{step}.{ending}")
    table = read_rollouts(tmp_path)
    assert table["step"].unique().tolist() == [1, 2, 10]
    assert table.groupby(["step", "group"])["rollout"].nunique().tolist() == [2] * 6
    assert table.groupby(["step", "rollout"])["reward"].first().tolist() == [1.0, 0.0, 0.0, 0.0] * 3


def test_cancellation_is_counted_place_by_place():
    """Advantages +-1 on `it is`: all cancels there; the answers do not."""
    table = pd.DataFrame(
        {
            "group": 0,
            "rollout": [0, 0, 0, 1, 1, 1],
            "position": [0, 1, 2] * 2,
            "token": ["it", "is", "4", "it", "is", "5"],
            "reward": [1.0] * 3 + [0.0] * 3,
            "advantage": [1.0] * 3 + [-1.0] * 3,
        }
    )
    report = report_findings(table)
    shared = report.shared.set_index("shared")
    assert shared.loc[SHARED[0], "cancelled"] == 1.0
    assert shared.loc[SHARED[0], "push"] == pytest.approx(4 / 6)
    assert shared.loc[SHARED[2], "cancelled"] == 0.0
    assert report.tokens.set_index("token")["net"].to_dict() == {
        "it": 0.0,
        "is": 0.0,
        "4": 1.0,
        "5": -1.0,
    }
    assert report.residual == (0.0, 0.0)


def healthy(groups=32):
    """A table in which nothing is out of order: a first token that cancels, and a last one that
    differs.
    """
    counts, names = (range(groups), range(4), range(2)), ["step", "rollout", "position"]
    table = pd.MultiIndex.from_product(counts, names=names).to_frame(index=False)
    sign = 2.0 * (table["rollout"] % 2) - 1
    token = table["rollout"].astype(str).mask(table["position"] == 0, "so")
    known = {"group": 0, "token": token, "stopped": "", "logp": -1.0, "logp_after": -1 + sign / 2}
    return table.assign(**known, reward=sign, advantage=sign, push=sign)


SAME = "Where all rollouts of a group have the same token,"
RULES = {  # rows of the healthy table, what they are changed to, and the first line of the report
    "lost": ("step < 20", {"advantage": 0.0, "push": 0.0}, "62% of groups had one"),
    "repeats": ("rollout > 1", {"token": "so"}, "25% of rollouts repeat another"),
    "clipped": ("rollout == 0", {"stopped": "clip high"}, "Clipping stopped 25% of all advantage"),
    "truncated": ("rollout == 0", {"stopped": "truncated"}, "25% of rollouts were cut off"),
    "stays": ("rollout == 1", {"push": 3.0}, f"{SAME} 33% of its push stays; 0% would"),
    "equal": (
        "rollout == 1",
        {"push": 3.0, "advantage": 3.0},
        f"{SAME} even equal weights leave 33%",
    ),
    "against": ("push > 0", {"logp_after": -2.0}, "50% of the tokens that moved went against"),
    "longer": (
        "rollout in (0, 2) and position == 0",
        None,
        "Negative rollouts are 50% shorter than positive",
    ),
    "few": ("step > 9", None, "There are 10 groups only"),
    "fell": ("step < 0", None, "Entropy fell from 1.000 to 0.200"),
    "none": ("step < 0", None, "Nothing in this log asks for a change."),
}


def broken(table, rule):
    """The table with a rule's rows changed, or dropped."""
    where, change, _ = RULES[rule]
    rows = table.index.isin(table.query(where).index)
    if change is None:
        return table[~rows]
    return table.assign(**{name: table[name].mask(rows, value) for name, value in change.items()})


@pytest.mark.parametrize("rule", RULES)
def test_the_first_line_is_the_one_thing_to_do(rule):
    report = report_findings(
        broken(healthy(), rule), pd.DataFrame({"entropy": [1.0, 0.2] * (rule == "fell")})
    )
    assert report_text(report).startswith(RULES[rule][-1])
    assert len(report_warnings(report)) == (rule != "none")


def test_of_several_things_to_do_the_first_rule_decides():
    few = broken(healthy(10), "truncated")
    assert report_text(report_findings(few)).startswith("25% of rollouts were cut off")
    assert report_text(report_findings(broken(few, "lost"))).startswith(
        "100% of groups had one reward only"
    )


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ('{"prompt": "a"', "a.jsonl", "a.jsonl can't be read as jsonl"),
        (
            '[{"prompt": "a", "reward": 1}]',
            "a.json",
            "a.json has no column completion or completion_ids; it has prompt",
        ),
        ("prompt,completion\na,b\n", "a.csv", "a.csv has neither a reward nor an advantage"),
        ("PAR1", "a.parquet", "a.parquet can't be read as parquet"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, text, name, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=says):
        read_rollouts(tmp_path / name)
    with refused("path", str(tmp_path / "nowhere")):
        read_rollouts(tmp_path / "nowhere")


def test_the_committed_run_is_whole_light_and_read_without_its_weights():
    run = load_run(data_path("smollm2", "run_300"))
    assert (run.status()["state"], run.status()["step"]) == ("finished", 300)
    assert run.metrics()["step"].tolist() == [*range(1, 301)]
    assert run.token_steps() == [1, *range(10, 301, 10)]
    assert sum(path.stat().st_size for path in run.folder.rglob("*")) < 4e6
    table = read_rollouts(run.folder)
    assert table["step"].unique().tolist() == run.token_steps()
    assert "of 124 groups have an advantage" in report_text(report_findings(table))
