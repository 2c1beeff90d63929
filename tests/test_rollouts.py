"""Rollouts: masks, padding and scores against an unpadded teacher-forced forward; prompts as TRL
has them.
"""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from refusals import refused
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from workbook.policies.models import padding_error
from workbook.rollouts.sample import Rollouts, sample_rollouts, sequence_logps
from workbook.rollouts.scoring import unpadded
from workbook.rollouts.states import output_states

WORDS = ["<pad>", "<eos>", "<unk>", "<user>", "<bot>", *"0123456789+-=?;"]
CHAT = (
    "{% for m in messages %}<user> {{ m['content'] }} {% endfor %}{% if add_generation_prompt"
    " %}<bot>{% endif %}"
)
PAD, EOS = 0, 1
ENDS = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": None}


def make_tokenizer(chat_template=CHAT):
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)
    fast.add_special_tokens({"additional_special_tokens": ["<user>", "<bot>"]})
    fast.chat_template = chat_template
    return fast


def make_model(seed=0, spread=0.3, width=32):
    """A tiny random Llama whose wide initial weights make its distributions far from uniform."""
    sizes = {
        "vocab_size": len(WORDS),
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": spread}
    config = LlamaConfig(**sizes, **heads, **ENDS)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


class SumTask:
    """Prompts of different lengths; the reward counts digits, so that it varies; every token but
    EOS has a credit.
    """

    name = "sum"

    def __init__(self, chat=False):
        self.chat, self.seen = chat, None

    def dataset(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        digits = [torch.randint(10, (2 + i % 3,), generator=generator).tolist() for i in range(n)]
        prompts = [" + ".join(map(str, row)) + " =" for row in digits]
        if self.chat:
            prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
        return Dataset.from_dict(
            {"prompt": prompts, "answer": [str(sum(d)) for d in digits], "level": list(range(n))}
        )

    def reward(self, prompts, completions, answer, **columns):
        self.seen = {"prompts": prompts, "completions": completions, "answer": answer, **columns}
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        return [sum(character.isdigit() for character in text) / 10 for text in texts]

    def annotate(self, prompt, answer, tokens):
        return (
            [("eos", None) if token == "<eos>" else ("result", 0.5) for token in tokens]
            if "0" in prompt
            else None
        )


@pytest.fixture(scope="module")
def policy():
    return SimpleNamespace(model=make_model(), tokenizer=make_tokenizer())


def forward_alone(model, prompt, completion, temperature=1.0):
    """The reference: one unpadded sequence through the model, nothing shared with the code under
    test.
    """
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0].double() / temperature
    p = torch.softmax(logits, dim=-1)[len(prompt) - 1 : -1]
    chosen = p[torch.arange(len(completion)), torch.tensor(completion, dtype=torch.long)]
    return chosen.log(), torch.distributions.Categorical(probs=p).entropy()


RAGGED = [
    ([5, 15, 6, 17], [7, EOS, 9]),  # an end token inside
    ([9], [EOS]),
    ([3, 8, 8, 8, 8, 17, 4], [5, 6, 7, 8, 9, 10]),
    ([12, 13], []),  # nothing at all
]


def padded_batch(side):
    width, length = 8, 6
    prompts, prompt_mask, completions, mask = [], [], [], []
    for prompt, completion in RAGGED:
        gap = width - len(prompt)
        before = side == "left"
        prompts.append([PAD] * gap + prompt if before else prompt + [PAD] * gap)
        prompt_mask.append(
            [0] * gap + [1] * len(prompt) if before else [1] * len(prompt) + [0] * gap
        )
        completions.append(completion + [PAD] * (length - len(completion)))
        mask.append([1] * len(completion) + [0] * (length - len(completion)))
    return tuple(torch.tensor(rows) for rows in (prompts, prompt_mask, completions, mask))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("batch_size", "temperature"), [(None, 1.0), (1, 0.7), (3, 0.7)])
@pytest.mark.parametrize(
    ("attention", "dtype", "tolerance"),
    [("sdpa", torch.float32, 1e-5), ("eager", torch.float32, 1e-5), ("sdpa", torch.float64, 1e-6)],
)
def test_sequence_logps_equal_an_unpadded_forward(
    side, batch_size, temperature, attention, dtype, tolerance
):
    model = make_model().to(dtype)
    model.set_attn_implementation(attention)
    batch = padded_batch(side)
    with torch.no_grad():
        logps, entropies = sequence_logps(
            model, *batch, temperature=temperature, batch_size=batch_size
        )
    assert logps.shape == entropies.shape == (4, 6)
    assert (logps[batch[3] == 0] == 0).all()
    assert (entropies[batch[3] == 0] == 0).all()
    for row, (prompt, completion) in enumerate(RAGGED):
        want_logp, want_entropy = forward_alone(model, prompt, completion, temperature)
        torch.testing.assert_close(
            logps[row, : len(completion)].double(), want_logp, rtol=0, atol=tolerance
        )
        torch.testing.assert_close(
            entropies[row, : len(completion)].double(), want_entropy, rtol=0, atol=tolerance
        )


@pytest.mark.parametrize("chat", [False, True])
def test_sampled_rollouts_score_as_unpadded_forwards(policy, chat):
    task = SumTask(chat)
    rollouts = sample_rollouts(
        policy, task, 6, group_size=4, max_new_tokens=12, temperature=0.8, batch_size=10
    )
    assert len(rollouts) == 24
    for row in range(24):
        prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row].bool()].tolist()
        completion = rollouts.completion_ids[row][rollouts.completion_mask[row].bool()].tolist()
        assert EOS not in completion[:-1]
        assert completion[-1] == EOS or len(completion) == 12
        text = (
            "<user> " + rollouts.prompts[row][0]["content"] + " <bot>"
            if chat
            else rollouts.prompts[row]
        )
        assert policy.tokenizer.decode(prompt) == text
        logps, entropies = forward_alone(policy.model, prompt, completion, 0.8)
        torch.testing.assert_close(
            rollouts.old_logps[row, : len(completion)].double(), logps, rtol=0, atol=1e-5
        )
        torch.testing.assert_close(
            rollouts.entropies[row, : len(completion)].double(), entropies, rtol=0, atol=1e-5
        )
    ended = (rollouts.completion_ids == EOS).any(dim=1)
    assert ended.any()
    assert not ended.all()
    assert (rollouts.completion_ids[rollouts.completion_mask == 0] == PAD).all()


def test_rewards_are_asked_for_as_trl_asks(policy):
    task = SumTask(chat=True)
    rollouts = sample_rollouts(policy, task, 3, group_size=2, max_new_tokens=6)
    assert task.seen["level"] == [0, 0, 1, 1, 2, 2]
    assert task.seen["completions"][3] == [
        {"role": "assistant", "content": rollouts.completions[3]}
    ]
    assert (
        task.seen["completion_ids"][3]
        == rollouts.completion_ids[3][rollouts.completion_mask[3].bool()].tolist()
    )
    assert task.seen["answer"] == list(rollouts.answers)
    assert rollouts.group_ids.tolist() == [0, 0, 1, 1, 2, 2]
    centred = rollouts.rewards - rollouts.rewards.view(3, 2).mean(1).repeat_interleave(2)
    dr = sample_rollouts(policy, task, 3, group_size=2, max_new_tokens=6, estimator="dr_grpo")
    torch.testing.assert_close(dr.advantages, centred)
    assert centred.abs().sum() > 0


def test_sampling_follows_the_models_distribution_whatever_its_generation_config(policy):
    model = make_model(seed=3, spread=0.3)
    for option, value in {
        "top_k": 1,
        "temperature": 0.2,
        "min_p": 0.9,
        "repetition_penalty": 3.0,
    }.items():
        setattr(model.generation_config, option, value)
    own = model.generation_config
    data = Dataset.from_dict({"prompt": ["5 + 6 ="], "answer": ["11"]})
    local = SimpleNamespace(model=model, tokenizer=policy.tokenizer)
    rollouts = sample_rollouts(
        local, SumTask(), data, group_size=4000, max_new_tokens=1, batch_size=4000
    )
    assert model.generation_config is own
    with torch.no_grad():
        p = model(rollouts.prompt_ids[:1]).logits[0, -1].softmax(-1).double()
    seen = torch.bincount(rollouts.completion_ids[:, 0], minlength=len(p)).double()
    chi2 = ((seen - 4000 * p) ** 2 / (4000 * p)).sum()
    assert chi2 < 60, "4,000 draws over 20 tokens: beyond 60 lies a chance of 1e-6"
    torch.testing.assert_close(
        rollouts.entropies[0, 0].double(),
        torch.distributions.Categorical(p).entropy(),
        rtol=1e-6,
        atol=0,
    )


def test_from_batch_keeps_what_is_known(policy):
    sampled = sample_rollouts(policy, SumTask(), 3, group_size=2, max_new_tokens=7)
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
    batch = {name: getattr(sampled, name) for name in names}
    with pytest.raises(ValueError, match="group_ids"):
        Rollouts.from_batch(batch)
    bare = Rollouts.from_batch(batch, group_ids=sampled.group_ids)
    table = bare.token_table()
    assert table[["reward", "logp", "entropy", "credit", "token", "category"]].isna().all().all()
    full = Rollouts.from_batch(
        {
            **batch,
            "group_ids": sampled.group_ids,
            "old_per_token_logps": sampled.old_logps,
            "rewards": sampled.rewards,
        },
        policy.tokenizer,
    )
    assert full.tokens == sampled.tokens
    assert full.completions == sampled.completions
    assert full.prompts == sampled.prompts
    want = sampled.token_table()[["token", "logp", "reward", "advantage"]]
    assert full.token_table()[["token", "logp", "reward", "advantage"]].equals(want)
    per_token = sampled.advantages[:, None] * torch.arange(sampled.completion_ids.shape[1])
    table = Rollouts.from_batch(
        {**batch, "advantages": per_token}, group_ids=sampled.group_ids
    ).token_table()
    assert table.advantage.tolist() == pytest.approx(
        (want.advantage * sampled.token_table().position).tolist()
    )


@pytest.mark.parametrize("chat", [False, True])
def test_prompt_tokens_and_masks_equal_the_trainers(policy, chat, tmp_path):
    from trl import GRPOConfig, GRPOTrainer

    task = SumTask(chat)
    data = task.dataset(4, 0)
    args = GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to=[],
        num_generations=2,
        per_device_train_batch_size=8,
        max_completion_length=6,
        gradient_checkpointing=False,
        temperature=0.9,
    )
    trainer = GRPOTrainer(make_model(), task.reward, args, data, processing_class=make_tokenizer())
    rows = [row for row in data for _ in range(2)]
    torch.manual_seed(0)
    batch = trainer._generate_and_score_completions(rows)
    ours = sample_rollouts(
        policy, task, data, group_size=2, max_new_tokens=6, temperature=0.9, seed=0
    )
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"):
        assert torch.equal(batch[name], getattr(ours, name)), name
    torch.testing.assert_close(batch["advantages"], ours.advantages)
    model_inputs = (
        torch.cat([ours.prompt_ids, ours.completion_ids], 1),
        torch.cat([ours.prompt_mask, ours.completion_mask], 1),
    )
    trl_logps, trl_entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, *model_inputs, ours.completion_ids.shape[1], compute_entropy=True
    )
    keep = ours.completion_mask.bool()
    torch.testing.assert_close(trl_logps[keep], ours.old_logps[keep], rtol=0, atol=1e-5)
    torch.testing.assert_close(trl_entropies[keep], ours.entropies[keep], rtol=0, atol=1e-5)


# --- models that padding changes
def tiny(kind, dtype=torch.float32, **settings):
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.3,
    }
    if kind == "bart":
        layers = {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
        sizes = {"d_model": 32, "init_std": 0.3, **layers}
    config = AutoConfig.for_model(kind, vocab_size=len(WORDS), **sizes | ENDS | settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).to(dtype).eval()


CHANGED_BY_PADDING = {
    "positions of its own": lambda: tiny("bart"),
    "a recurrent state": lambda: tiny("rwkv", attention_hidden_size=32, context_length=64),
    "NaN in float64": lambda: tiny(
        "llama", torch.float64, attn_implementation="eager", intermediate_size=32
    ),
}


@pytest.mark.parametrize("kind", CHANGED_BY_PADDING)
def test_a_model_that_padding_changes_is_sampled_scored_and_seen_row_by_row(kind):
    model = CHANGED_BY_PADDING[kind]()
    policy = SimpleNamespace(model=model, tokenizer=make_tokenizer())
    assert not padding_error(model) <= 1
    rollouts = sample_rollouts(
        policy, SumTask(), 4, group_size=2, max_new_tokens=5, generation_kwargs={"top_k": 1}
    )
    assert len(set(rollouts.prompt_mask.sum(1).tolist())) > 1
    states = output_states(policy, rollouts)
    seen = states.logits.split(rollouts.completion_mask.sum(1).tolist())
    for row, prompt in enumerate(unpadded(rollouts.prompt_ids, rollouts.prompt_mask)):
        completion = rollouts.completion_ids[row][rollouts.completion_mask[row].bool()].tolist()
        logps, _ = forward_alone(model, prompt, completion)
        torch.testing.assert_close(
            rollouts.old_logps[row, : len(completion)].double(), logps, atol=1e-4, rtol=1e-4
        )
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[
                0, len(prompt) - 1 : -1
            ]
        torch.testing.assert_close(seen[row], logits, atol=1e-4, rtol=1e-4)
        assert completion == logits.argmax(-1).tolist(), (
            "greedy, and from what stands before without padding"
        )


# --- what is sampled
@pytest.mark.parametrize(
    "settings",
    [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"generation_kwargs": {"do_sample": False}}],
)
def test_settings_that_leave_one_token_leave_the_likeliest(policy, settings):
    rollouts = sample_rollouts(policy, SumTask(), 3, group_size=2, max_new_tokens=4, **settings)
    model = policy.model
    with torch.no_grad():
        ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], dim=1)
        mask = torch.cat([rollouts.prompt_mask, rollouts.completion_mask], dim=1)
        logits = model(
            ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)
        ).logits
    likeliest = logits[:, -rollouts.completion_ids.shape[1] - 1 : -1].argmax(-1)
    alive = rollouts.completion_mask.bool()
    assert torch.equal(rollouts.completion_ids[alive], likeliest[alive])
    assert (rollouts.old_logps[alive] < -1e-3).any(), (
        "scores are of the whole distribution, as in TRL's trainer"
    )


def test_a_seed_reproduces_and_nothing_global_moves(policy):
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (
        sample_rollouts(policy, SumTask(), 4, group_size=2, seed=seed, max_new_tokens=8)
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.rand(3), want)
    assert torch.equal(first.completion_ids, again.completion_ids)
    assert first.completions != other.completions


NAMELESS = Dataset.from_dict({"text": ["1"]})


def rewarding(*rewards):
    task = SumTask()
    task.reward = lambda **_: list(rewards)
    return task


@pytest.mark.parametrize(
    ("task", "prompts", "settings", "field", "value"),
    [
        (SumTask(), 2, {"group_size": 0}, "group_size", 0),
        (
            SumTask(),
            2,
            {"temperature": float("nan")},
            "temperature",
            float("nan"),
        ),
        (SumTask(), 2, {"top_p": 0.0}, "top_p", 0.0),
        (
            SumTask(),
            2,
            {"top_k": 1.5},
            "top_k",
            1.5,
        ),
        (SumTask(), 2, {"min_p": 2}, "min_p", 2),
        (SumTask(), 2, {"generation_kwargs": {"warmth": 2}}, "generation_kwargs['warmth']", 2),
        (
            SumTask(),
            2,
            {"generation_kwargs": {"num_return_sequences": 2}},
            "generation_kwargs['num_return_sequences']",
            2,
        ),
        (SumTask(), 0, {}, "prompts", 0),
        (SumTask(), NAMELESS, {}, "prompts", NAMELESS),
        (
            SumTask(),
            Dataset.from_dict({"prompt": ["", "1"], "answer": ["", ""]}),
            {},
            "prompt",
            "",
        ),
        (rewarding(None, 1.0), 1, {}, "task.reward", None),
        (rewarding(1.0), 1, {}, "task.reward", [1.0]),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_a_sentence(
    policy, task, prompts, settings, field, value
):
    with refused(field, value):
        sample_rollouts(policy, task, prompts, **{"group_size": 2, "max_new_tokens": 2} | settings)
