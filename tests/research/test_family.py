"""The family of policies: the chain task's dials, members made once, and units of studies."""

import hashlib
import json
import random
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

from workbook.app.memory import forecast_run
from workbook.places import file_hash
from workbook.policies import family, load_policy
from workbook.policies.family import (
    Member,
    committed_file,
    committed_seeds,
    member_folder,
    member_of,
)
from workbook.policies.load import check_name, locate
from workbook.policies.packaged import RECORD
from workbook.policies.small import from_int8
from workbook.studies import StudyUnit, making
from workbook.studies.making import make_member
from workbook.studies.unit import UNITS
from workbook.tasks import Chain, get_task
from workbook.tasks.chain import (
    EQUIVALENTS,
    canonical,
    in_alphabet,
    marked_alphabet,
    to_first_alphabet,
)
from workbook.training import RunConfig
from workbook.training.checks import check_run

SMALL = {"operands": 2, "width": 8, "sft_steps": 4}


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    monkeypatch.setattr(making, "TUNING_STEPS", 2)
    monkeypatch.setattr(making, "MORE_PER_DOUBLING", 1)
    monkeypatch.setattr(making, "MEASURED_PROMPTS", 4)
    return tmp_path / "family"


def test_private_alphabets_change_the_words_and_nothing_else():
    """The same prompts, answers, rewards, categories and credits as in plain words; no word of two
    alphabets.
    """
    plain_task, task = Chain(), get_task("chain", alphabets=4)
    rows, plain_rows = task.dataset(40, seed=3), plain_task.dataset(40, seed=3)
    assert [to_first_alphabet(prompt) for prompt in rows["prompt"]] == list(plain_rows["prompt"])
    assert rows["answer"] == plain_rows["answer"]
    assert {marked_alphabet(prompt) for prompt in rows["prompt"]} == {0, 1, 2, 3}
    assert len(set(task.vocabulary)) == 4 * len(plain_task.vocabulary)
    for prompt, bare, answer in zip(
        rows["prompt"], plain_rows["prompt"], rows["answer"], strict=True
    ):
        text, bare_text = (
            t.demonstrate(p, random.Random(1)) for t, p in ((task, prompt), (plain_task, bare))
        )
        assert text == in_alphabet(bare_text, marked_alphabet(prompt))
        assert {marked_alphabet(word) for word in text.split()} == {marked_alphabet(prompt)}
        tokens, bare_tokens = [*text.split(), "<eos>"], [*bare_text.split(), "<eos>"]
        assert task.annotate(prompt, answer, tokens) == plain_task.annotate(
            bare, answer, bare_tokens
        )
        assert task.reward([prompt], [text], [answer]) == plain_task.reward(
            [bare], [bare_text], [answer]
        )
        assert task.style_key(text) == plain_task.style_key(bare_text)
    texts = [in_alphabet("now 9 + 3 is 1", 2)]
    assert (
        task.calibrated(texts).error_rate
        == plain_task.calibrated(["now 9 + 3 is 1"]).error_rate
        > 0.8
    )


def test_a_word_of_another_alphabet_counts_as_the_plain_one():
    """To the verifier and in credit alike: credits sum to the reward minus the prompt's value."""
    task, rng = Chain(alphabets=4, error_rate=0.5), random.Random(0)
    for prompt in task.dataset(40)["prompt"]:
        own = task.demonstrate(prompt, rng).split()
        words = [in_alphabet(to_first_alphabet(word), rng.randrange(4)) for word in own]
        rows = task.annotate(prompt, task.solve(prompt), [*words, "<eos>"])
        assert rows == task.annotate(prompt, task.solve(prompt), [*own, "<eos>"])
        reward = task.score(" ".join(words), task.solve(prompt))
        assert sum(credit for _, credit in rows) == pytest.approx(reward - task.value(True, 4))
        assert task.style_key(" ".join(words)) is None, "a chain is written in one alphabet"


def test_confidence_is_the_share_of_template_words_that_stay():
    task, strict = Chain(confidence=0.7), Chain()
    rng, stay, all_of_them = random.Random(0), 0, 0
    for row in task.dataset(200, seed=1):
        text = task.demonstrate(row["prompt"], rng)
        words = text.split()
        rows = task.annotate(row["prompt"], row["answer"], words)
        known = " ".join(map(canonical, words))
        assert rows == strict.annotate(row["prompt"], row["answer"], known.split())
        assert task.reward([row["prompt"]], [text], [row["answer"]]) == strict.reward(
            [""], [known], [row["answer"]]
        )
        assert all(
            category == "template"
            for word, (category, _) in zip(words, rows, strict=True)
            if canonical(word) != word
        )
        stay += sum(word in EQUIVALENTS for word in words)
        all_of_them += sum(canonical(word) in EQUIVALENTS for word in words)
    assert all_of_them == 7 * 200
    assert stay / all_of_them == pytest.approx(0.7, abs=0.04)
    changed = strict.render("1 + 1 =").replace("with", "at")
    assert strict.style_key(changed) is None
    assert task.style_key(changed) is not None
    assert strict.demonstrate("1 + 1 =", random.Random(5)) == Chain(confidence=1).demonstrate(
        "1 + 1 =", random.Random(5)
    )


@pytest.mark.parametrize(
    "member",
    [
        Member(3),
        Member(0, alphabets=4, confidence=0.8),
        Member(2_000_000, confidence=1e-7, width=128, operands=7, sft_steps=90),
    ],
)
def test_a_name_names_one_member(member):
    assert member_of(member.name) == member
    assert member.task == get_task("chain", **member.task_options)


@pytest.mark.parametrize(
    "name",
    ["family:seed=3,depth=4", "family:seed=x", "family:seed=1,seed=2", "family:alphabets=4"],
)
def test_other_names_are_refused(name):
    with refused("name", name):
        load_policy(name)


@pytest.mark.parametrize(("dial", "value"), [("width", 12), ("confidence", 1.5), ("alphabets", 0)])
def test_a_dial_out_of_range_is_refused(dial, value):
    with refused(dial, value):
        load_policy(f"family:seed=1,{dial}={value}")


def test_a_base_member_is_what_the_bundled_script_makes(cache, monkeypatch, tmp_path):
    out, script = (
        tmp_path / "script",
        Path(__file__).parents[2] / "data" / "bundled" / "make_policy.py",
    )
    settings = ["--seed", "4", "--operands", "2", "--steps", "4", "--eval-prompts", "2"]
    monkeypatch.setattr(sys, "argv", [str(script), "--out", str(out), *settings])
    threads = torch.get_num_threads()
    runpy.run_path(str(script), run_name="__main__")
    torch.set_num_threads(threads)
    folder = make_member(Member(4, operands=2, sft_steps=4))
    for name in ("model.safetensors", "tokenizer.json", "config.json", "generation_config.json"):
        assert (folder / name).read_bytes() == (out / name).read_bytes(), name


def test_a_member_is_made_once_and_anew_if_damaged(cache):
    member = Member(1, **SMALL)
    state = torch.random.get_rng_state()
    make_member(member)
    first = load_policy(member.name)
    assert torch.equal(state, torch.random.get_rng_state())
    assert first.provenance["source"] == member.name
    file = member_folder(member) / "model.safetensors"
    made = file.stat().st_mtime_ns
    assert make_member(member) == file.parent
    assert (
        load_policy(member.name).provenance["sha256"]
        == hashlib.sha256(file.read_bytes()).hexdigest()
    )
    assert file.stat().st_mtime_ns == made
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"workbook\.studies\.making"):
        load_policy(member.name)
    make_member(member)
    assert load_policy(member.name).provenance["sha256"] == first.provenance["sha256"]
    assert {path.name for path in cache.iterdir() if not path.name.endswith(".lock")} == {
        member_folder(member).name
    }


def test_loading_looking_and_forecasting_train_nothing(cache):
    """What is not there is not made, and the sentence names the command that makes it."""
    name = Member(1, **SMALL).name
    config = RunConfig(policy=name, trainer={"max_steps": 1, "num_generations": 8})
    sentence = rf"{name} is not among .*: python -m workbook\.studies\.making {name} makes it"
    for door in (load_policy, locate, check_name):
        with pytest.raises(ValueError, match=sentence):
            door(name)
    for door in (forecast_run, check_run):
        with pytest.raises(ValueError, match=sentence):
            door(config)
    assert not cache.exists()
    made = subprocess.run(
        [sys.executable, "-m", "workbook.studies.making", name], capture_output=True, text=True
    )
    assert Path(made.stdout.strip()) == member_folder(member_of(name))
    check_run(config)
    assert len(forecast_run(config))


def test_a_member_with_more_words_starts_from_its_base(cache):
    member = Member(1, alphabets=3, confidence=0.5, **SMALL)
    make_member(member)
    policy, base = load_policy(member.name), load_policy(member.base.name)
    facts = json.loads((member_folder(member) / RECORD).read_text())
    assert facts["start"]["sha256"] == base.provenance["sha256"]
    assert facts["member"]["alphabets"] == 3
    assert len(policy.tokenizer) == 3 + 3 * (10 + 2 + 6 + 12 + 3) == policy.model.config.vocab_size
    assert (
        policy.tokenizer.unk_token_id
        not in policy.tokenizer(" ".join(member.task.vocabulary)).input_ids
    )
    rows, old = policy.model.lm_head.weight, base.model.lm_head.weight
    of = {
        word: rows[policy.tokenizer.convert_tokens_to_ids(word)]
        for word in ("at'2", "with'2", "7'2", "7'1", "7")
    }
    seven = old[base.tokenizer.convert_tokens_to_ids("7")]
    assert (of["7"] - seven).norm() > 0
    assert not torch.equal(of["7'2"], of["7'1"])
    assert (of["at'2"] - of["with'2"]).norm() < 0.1 * (of["7'2"] - of["with'2"]).norm(), (
        "an equivalent starts as a copy"
    )


def test_committed_policies_are_the_units_and_have_learned_enough(cache):
    """Ten units, three for tuning, an example; each file is the recorded one, and what is loaded is
    what it holds.
    """
    members = json.loads((family.COMMITTED / "members.json").read_text())["members"]
    seeds = {role: committed_seeds(role) for role in ("unit", "tuning")}
    assert [len(seeds["unit"]), len(seeds["tuning"])] == [10, 3]
    names = {
        row.get("name", Member(row["seed"]).name): row
        for row in members
        if row["role"] != "passed over"
    }
    files = sorted(committed_file(member_of(name)) for name in names)
    assert files == sorted(family.COMMITTED.glob("*.safetensors"))
    for name, member in names.items():
        assert file_hash(committed_file(member_of(name))) == member["sha256"]
        assert member["measured"]["reward"] >= 0.2
        assert member["measured"]["greedy"] >= 0.5
    seed = seeds["tuning"][0]
    policy, stored = (
        load_policy(Member(seed).name),
        from_int8(load_file(committed_file(Member(seed)))),
    )
    assert all(
        torch.equal(weights, stored[name]) for name, weights in policy.model.state_dict().items()
    )


def test_units_train_and_hold_out_in_classes_of_their_own():
    """Ten policies in turn; no prompt of any unit's training is held out by any unit, whatever its
    scale.
    """
    units = [StudyUnit("family", unit) for unit in range(12)]
    assert [study_unit.setting.policy for study_unit in units] == [
        Member(UNITS[k % 10]).name for k in range(12)
    ]
    train = [
        set(study_unit.task.dataset(30, study_unit.data_seed)["prompt"]) for study_unit in units
    ]
    held = [
        set(study_unit.task.dataset(30, study_unit.held_out_seed)["prompt"]) for study_unit in units
    ]
    assert not set.union(*train) & set.union(*held)
    assert len(set.union(*train)) > 340 < len(set.union(*held))
    for seed in range(8):
        study_unit = StudyUnit("bundled", seed)
        assert study_unit.data_seed == seed
        assert study_unit.data_seed % 8 != study_unit.held_out_seed % 8


def test_a_unit_is_dialled_to_another_member():
    study_unit = StudyUnit("family", 5)
    other = study_unit.dialled(alphabets=4).dialled(operands=7)
    assert other.setting.policy == f"family:seed={UNITS[5]},alphabets=4,operands=7"
    assert (other.setting.max_new_tokens, study_unit.setting.max_new_tokens) == (7 * 7 + 13, 48)
    assert (other.data_seed, other.held_out_seed) == (
        study_unit.data_seed,
        study_unit.held_out_seed,
    )
    alike = study_unit.dialled(alphabets=4)
    assert list(
        map(to_first_alphabet, alike.task.dataset(9, study_unit.data_seed)["prompt"])
    ) == list(study_unit.task.dataset(9, study_unit.data_seed)["prompt"])
    with refused("dial", "depth"):
        study_unit.dialled(depth=3)
    with refused("dials", {"alphabets": 4}):
        StudyUnit("bundled").dialled(alphabets=4)
