"""Mistakes that a command line is asked to answer: wrong values, fields, texts, grids, files and commands.

Each is known to be wrong, and stands with words that the sentence which refuses it must hold.
"""

from __future__ import annotations

import math
from pathlib import Path

import yaml

BASE = {
    "name": "small",
    "num_prompts": 8,
    "threads": 1,
    "trainer": {
        "max_steps": 1,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "loss_type": "dr_grpo",
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 8,
        "save_strategy": "no",
    },
}
NAN, INF, HUGE, DIGITS = math.nan, math.inf, 10**12, 10**400
NO_NUMBER = ["x", "", True, [1], {"a": 1}, "1,5", NAN, INF, -INF]
NO_COUNT = [0, -1, 1.5, "8", HUGE, DIGITS, *NO_NUMBER]
NO_FLAG = ["maybe", 1, 0, None, "true", [True]]
NO_TEXT = [5, None, True, ["a"], {"a": "b"}, "", " ", "a\nb", "\x1b[31m", "\0", "x" * 2000]
NO_OPTIONS = [[1], "a", 5, True, {1: 2}]
WRONG_RUN = {  # a field of a run: values that it can't have
    "name": [*NO_TEXT, "a/b", "..", ".hidden", "a\\b", " a", "a" * 101, "\ud800"],
    "policy": [*NO_TEXT, "no/such/folder/anywhere", "two words", "/etc", ".", "../" * 40, "~nobody/model", "a/" * 400],
    "quantization": ["int8", "NF4", 4, True, ["nf4"], "nf4"],  # the last: without lora
    "dtype": ["fp16", "Auto", 16, None, ["float32"], "bfloat16"],  # the last: without lora
    "lora": [0, -1, 1.5, "8", True, [8], {"r": 8}, 10**7, DIGITS, NAN],
    "task": [*NO_TEXT, "chains", "gym:", "gym:nope", "hub:", "own:", "own:none.csv", "Chain", "gym"],
    "task_options": [None, *NO_OPTIONS, {"operands": 0}, {"operands": "x"}, {"zz": 1}, {"name": 1}, {"modulus": -1}],
    "num_prompts": [None, *NO_COUNT, 1],  # 1: fewer than a generation batch has
    "eval_prompts": [None, *NO_COUNT[1:]],
    "eval_group_size": [None, 1, *NO_COUNT],
    "seed": [None, *NO_COUNT[1:]],
    "threads": [*NO_COUNT, 10**9],
    "trainer": [None, *NO_OPTIONS, {}],
}
COUNTS = ("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations", "save_steps")
POSITIVE = ("learning_rate", "epsilon", "temperature", "repetition_penalty", "adam_epsilon", "sapo_temperature_pos")
NOT_NEGATIVE = ("beta", "max_grad_norm", "entropy_coef", "warmup_steps")
CHOICES = (
    "loss_type",
    "lr_scheduler_type",
    "optim",
    "save_strategy",
    "importance_sampling_level",
    "batching",
    "clipping",
)
CHOICES += ("advantage_estimator", "group_transform", "transform_on", "scale_rewards", "report_to", "vllm_mode")
FLAGS = (
    "trim_padding",
    "fp32_adapters",
    "gradient_checkpointing",
    "use_vllm",
    "mask_truncated_completions",
    "use_cache",
)
WRONG_TRAINER = {  # a field of the trainer: values that it can't have
    **{key: [None, *NO_COUNT] for key in COUNTS},
    **{key: [None, *NO_COUNT] for key in ("num_generations", "max_completion_length")},
    **dict.fromkeys(("steps_per_generation", "generation_batch_size"), NO_COUNT),
    **{key: [None, 0, -1, *NO_NUMBER] for key in POSITIVE},
    **{key: [None, -1, -1e-09, *NO_NUMBER] for key in NOT_NEGATIVE},
    **{key: [0, -1, *NO_NUMBER] for key in ("epsilon_high", "delta")},
    **{key: [None, 0, 1.1, -1, *NO_NUMBER] for key in ("top_p", "top_entropy_quantile")},
    **{key: [None, 1, 1.5, -0.1, *NO_NUMBER] for key in ("adam_beta1", "adam_beta2")},
    **{key: ["nope", 5, [5], {"a": 1}, "\n"] for key in CHOICES},
    **dict.fromkeys(FLAGS, NO_FLAG),
    **{key: [None, -1, True, 1.5, "x"] for key in ("measure_cancellation", "record_tokens")},
    "top_k": [None, -1, 1.5, True, "x"],
    "min_p": [-1, 2, True, "x", NAN],
    "lr_scheduler_kwargs": [*NO_OPTIONS, {"min_lr": 1}],
    "generation_kwargs": [*NO_OPTIONS, {"no_such_field": 1}],
    "optim_args": [5, True, "", "x", "a=1", "=1", ["a=1"]],
    "reward_weights": [[], [1, 2], [-1.0], "1", 5, [NAN]],
    "logging_steps": [0, 2, True, "1"],
}
NOT_FOR_RUNS = {  # fields of TRL's config that a run does not take, with values that TRL would
    **{"hub_token": "hf_secret", "push_to_hub": True, "hub_model_id": "a/b", "log_completions_hub_repo": "a/b"},
    **{"output_dir": "x", "use_cpu": True, "bf16": True, "fp16": True, "trainer.seed": 1, "save_total_limit": 1},
    **{
        "save_only_model": True,
        "resume_from_checkpoint": "x",
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
    },
    **{"eval_steps": 1, "do_eval": True, "num_train_epochs": 3, "deepspeed": "x.json", "fsdp": "full_shard"},
    **{"auto_find_batch_size": True, "trust_remote_code": True, "model_init_kwargs": {"a": 1}, "label_names": ["a"]},
    **{"remove_unused_columns": True, "local_rank": 1, "data_seed": 1, "use_transformers_paged": True, "debug": "x"},
}
UNKNOWN = [
    "num_promts",
    "learning_rat",
    "Learning_Rate",
    "lr",
    "trainer.",
    ".x",
    "trainer.zz",
    "task_option.operands",
    "a b",
]
TOGETHER = {  # settings of which each is right alone, and words of the sentence
    "generation_batch_size and steps_per_generation": ({"generation_batch_size": 8, "steps_per_generation": 1}, "both"),
    "groups that do not divide": ({"num_generations": 3}, "num_generations"),
    "batching of one step": ({"batching": "sign_partitioned"}, "batching='sign_partitioned'"),
    "a transform of one step": ({"group_transform": "min_replace"}, "group_transform='min_replace'"),
    "beta and the meter": ({"measure_cancellation": 1, "beta": 0.1, "group_transform": "min_replace"}, "="),
    "delta and a transform": ({"num_iterations": 2, "delta": 2.0, "group_transform": "min_replace"}, "="),
    "a schedule without its end": ({"lr_scheduler_type": "warmup_stable_decay"}, "warmup_stable_decay"),
    "a schedule without its least": ({"lr_scheduler_type": "cosine_with_min_lr"}, "cosine_with_min_lr"),
    "a schedule that would rise": ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 1}}, "lr_end"),
    "a schedule's argument": ({"lr_scheduler_type": "linear", "lr_scheduler_kwargs": {"zz": 1}}, "zz"),
    "warmup beyond the end": ({"lr_scheduler_type": "linear", "warmup_steps": 5}, "warmup_steps=5"),
    "vLLM, not installed": ({"use_vllm": True}, "vllm"),
    "a tracker, not installed": ({"report_to": "clearml"}, "clearml"),
    "trackers, one not installed": ({"report_to": ["tensorboard", "clearml"]}, "clearml"),
    "prefetching by nobody": ({"dataloader_prefetch_factor": 2}, "dataloader_prefetch_factor"),
    "clips that cross": ({"vllm_importance_sampling_clip_min": 5.0}, "vllm_importance_sampling_clip_min"),
    "two names of one field": ({"trainer.seed": 1, "seed": 1}, "seed"),
}
TEXTS = {  # a config file's text or bytes, and words of the sentence
    "empty": ("", "mapping"),
    "a list": ("- 1\n", "mapping"),
    "a word": ("chain", "mapping"),
    "a number": ("5", "mapping"),
    "an open bracket": ("name: [", "line 1"),
    "a tab": ("name: a\n\tseed: 1\n", "line 2"),
    "twice the same key": ("name: a\nseed: 1\nseed: 2\n", "seed is given twice"),
    "two documents": ("name: a\n---\nname: b\n", "another document"),
    "a Python object": ("name: !!python/object/apply:os.system [id]\n", "not valid YAML"),
    "a list as key": ("? [1]\n: 2\n", "not valid YAML"),
    "a number as key": ("1: 2\n", "1 is not a field"),
    "itself": ("task_options: &a {b: *a}\n", "values"),
    "a bomb": (
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{c}: &{c} [{','.join([f'*{b}'] * 10)}]\n" for b, c in zip("abcdefgh", "bcdefghi", strict=True)),
        "values",
    ),
    "too deep": ("name: " + "[" * 3000, "deeply"),
    "too long": ("# " + "x" * 2**20 + "\nname: a\n", "KiB"),
    "Latin-1": ("name: café\n".encode("latin-1"), "UTF-8"),
    "UTF-16": ("name: a\n".encode("utf-16"), "UTF-8"),
    "NUL": ("name: a\0b\n", "not valid YAML"),
    "an undefined alias": ("name: *a\n", "alias"),
    "sections as lists": ("trainer: [max_steps, 1]\n", "trainer=['max_steps', 1]"),
    "no max_steps": ("name: a\ntrainer: {learning_rate: 1e-3}\n", "max_steps"),
    "a field that is not there": ("name: a\nnum_promts: 3\n", "did you mean num_prompts"),
}
SETS = {  # an option's text, and words of the sentence
    **dict.fromkeys(("max_steps", "=5", "", "learning_rate 1e-3"), "key=value"),
    **{
        f"learning_rate={text}": "learning_rate"
        for text in ("", "[", "abc", ".nan", ".inf", "1e999", "'5e-4'", "-5e-4", "true")
    },
    **{f"policy={text}": "policy" for text in ("[", "{", "", "5", "[bundled]", "&a", "*a", "!!python/name:os.system")},
    **{f"trainer={text}": "trainer" for text in ("5", "", "[1]", "{max_steps: 0}")},
    **{f"task_options={text}": "task_options" for text in ("5", "", "[1]")},
    **{
        "task_options.zz=1": "zz",
        "trainer.learning_rate.x=1": "learning_rate.x",
        "name=5": "name=5",
        "max_steps=1e1": "max_steps",
    },
}
GRIDS = {  # a sweep's grid, and words of the sentence
    **{
        name: (grid, "needs a grid")
        for name, grid in {
            "nothing": None,
            "an empty grid": {},
            "an empty list": [],
            "a list with an empty grid": [{"seed": [0]}, {}],
            "a number": 5,
            "a word": "seed",
            "a list of lists": [["seed"]],
            "no list of values": {"seed": 0},
            "text for a list": {"batching": "shuffled"},
            "no values": {"seed": []},
            "a mapping of values": {"seed": {"a": 1}},
        }.items()
    },
    "twice the same seed": ({"seed": [0, 0]}, "same combination twice"),
    "twice the same rate": ({"learning_rate": [0.001, 1e-3]}, "same combination twice"),
    "one combination in two grids": ([{"seed": [0, 1]}, {"seed": [1]}], "same combination twice"),
    "equal numbers": ({"temperature": [1, 1.0]}, "same combination twice"),
    "one field by two names": (
        {"learning_rate": [1e-3], "trainer.learning_rate": [1e-4]},
        "learning_rate is set twice",
    ),
    "an unknown field": ({"sed": [0]}, "seed"),
    "a secret": ({"hub_token": ["hf_secret"]}, "hub_token"),
    "a bad first value": ({"learning_rate": [-1, 1e-3]}, "learning_rate=-1"),
    "a bad last value": ({"learning_rate": [1e-3, NAN]}, "learning_rate=nan"),
    "a bad value of text": ({"batching": ["shuffled", "none"]}, "batching='none'"),
    "a combination of no effect": ({"batching": ["shuffled", "sign_partitioned"]}, "sign_partitioned"),
    "folders that collide": ({"name": ["a-b"], "policy": ["bundled"], "seed": [1, True]}, "seed"),
    "a name that is too long": ({"run_name": ["x" * 300, "y"]}, "folder"),
    "too many runs": ({"seed": list(range(200)), "learning_rate": [i / 1e5 for i in range(1, 200)]}, "39,800 runs"),
}
CONFIG = {"c.yaml": yaml.safe_dump(BASE)}
SWEEP = {"s.yaml": yaml.safe_dump(BASE | {"grid": {"seed": [0, 1]}})}
TRAIN = ["train", "c.yaml", "--folder", "run"]
PARQUET = {"dose/family/seed=0/rates.parquet": "no table", "dose/family/seed=0/manifest.json": "{}"}
REWARD = "def f(completion, answer):\n    return float(answer in completion)\n"
ROWS = "prompt,answer\n" + "".join(f"{i} + 1 =,{i + 1}\n" for i in range(9))
OWN = ["--set", "task=own:p.csv", "--set", "task_options={reward: 'r.py:f'}"]
LAUNCH = Path(__file__).parents[1] / "data" / "configs" / "accelerate" / "multi_gpu.yaml"
COMMANDS = {  # files, a command, and words of the sentence; a file of None is a folder
    "no command": ({}, [], "COMMAND"),
    "an unknown command": ({}, ["tran"], "tran"),
    "no config": ({}, ["train"], "config"),
    "an unknown option": (CONFIG, [*TRAIN, "--nope"], "--nope"),
    "two configs": (CONFIG, ["train", "c.yaml", "c.yaml"], "c.yaml"),
    "a missing config": ({}, ["train", "c.yaml"], "c.yaml can't be read"),
    "a folder as config": ({"c.yaml": None}, TRAIN, "c.yaml can't be read"),
    "an empty config name": ({}, ["train", ""], "config"),
    "a config below a file": (CONFIG, ["train", "c.yaml/d.yaml"], "can't be read"),
    "a config that leads nowhere": ({"c.yaml": "->nowhere"}, TRAIN, "can't be read"),
    "a config that is a grid": (SWEEP, ["train", "s.yaml"], "grid"),
    "an empty folder name": (CONFIG, ["train", "c.yaml", "--folder", ""], "--folder"),
    "a blank folder name": (CONFIG, ["train", "c.yaml", "--folder", "  "], "--folder"),
    "a folder with a newline": (CONFIG, ["train", "c.yaml", "--folder", "a\nb"], "--folder"),
    "a folder of one's own": (CONFIG | {"run/notes.txt": "mine"}, TRAIN, "notes.txt"),
    "a folder of one's own checkpoints": (CONFIG | {"run/checkpoint-500/a": "mine"}, TRAIN, "checkpoint-500"),
    "a file as folder": (CONFIG | {"run": "mine"}, TRAIN, "run"),
    "a folder below a file": (CONFIG | {"f": "mine"}, ["train", "c.yaml", "--folder", "f/run"], "f/run"),
    "a link that leads nowhere": (CONFIG | {"run": "->nowhere"}, TRAIN, "run"),
    "a folder name that is too long": (CONFIG, ["train", "c.yaml", "--folder", "x" * 300], "x"),
    "one's own rows, missing": (
        CONFIG,
        [*TRAIN, "--set", "task=own:p.csv", "--set", "task_options={reward: 'r.py:f'}"],
        "p.csv",
    ),
    **{
        f"one's own rows: {name}": (CONFIG | {"p.csv": rows, "r.py": reward}, [*TRAIN, *OWN], words)
        for name, (rows, reward, words) in {
            "no answers": ("prompt\na\n", REWARD, "answer"),
            "too few": ("prompt,answer\na,b\n", REWARD, "1 row"),
            "none": ("", REWARD, "p.csv"),
            "a row of three": ("prompt,answer\na,b\na,b,c\n", REWARD, "line 3"),
            "Latin-1": ("prompt,answer\n\u00e9,b\n".encode("latin-1"), REWARD, "UTF-8"),
            "a folder": (None, REWARD, "p.csv"),
            "no such function": (ROWS, "def g(completion, answer):\n    return 1.0\n", "r.py:f"),
            "a reward that is no Python": (ROWS, "def f(", "SyntaxError: '(' was never closed (line 1)"),
            "a reward that raises": (
                ROWS,
                "raise RuntimeError('first\\nsecond')\n",
                "RuntimeError: first second (line 1",
            ),
            "a reward that ends its process": (ROWS, "import os\nos._exit(3)\n", "r.py"),
        }.items()
    },
    "another program's config": ({"c.yaml": LAUNCH.read_text()}, TRAIN, "compute_environment is not a field"),
    "twice the same option": (CONFIG, [*TRAIN, "--set", "seed=1", "--set", "seed=2"], "seed"),
    "one field by two options": (CONFIG, [*TRAIN, "--set", "max_steps=1", "--set", "trainer.max_steps=2"], "max_steps"),
    "a model that no hub has": (CONFIG, [*TRAIN, "--set", "policy=no-such-model-anywhere"], "no-such-model-anywhere"),
    "a folder that is no model": (CONFIG | {"m/a": ""}, [*TRAIN, "--set", "policy=m"], "config.json"),
    **{
        f"an option {name}": (CONFIG, [*TRAIN, "--set", f"{name}=1"], name)
        for name in ("folder", "progress", "config", "self", "wait")
    },
    "a run of no folder": ({}, ["resume", "none"], "holds no run"),
    "a run that is a file": ({"run": "x"}, ["resume", "run"], "holds no run"),
    "a run of no name": ({}, ["resume", ""], "run"),
    "a run that is none": ({"run/a": "x"}, ["resume", "run"], "holds no run"),
    "a run with a torn config": ({"run/config.yaml": "name: ["}, ["resume", "run"], "config.yaml"),
    "a run with another's config": ({"run/config.yaml": "- 1"}, ["resume", "run"], "config.yaml"),
    "a run whose config is a folder": ({"run/config.yaml": None}, ["resume", "run"], "config.yaml"),
    "a sweep without a grid": (CONFIG, ["sweep", "c.yaml"], "needs a grid"),
    "a missing sweep": ({}, ["sweep", "s.yaml"], "s.yaml can't be read"),
    "a sweep that is a list": ({"s.yaml": "- 1"}, ["sweep", "s.yaml"], "needs a grid"),
    "a sweep in Latin-1": ({"s.yaml": "name: é\n".encode("latin-1")}, ["sweep", "s.yaml"], "UTF-8"),
    **{
        f"{n!r} jobs": (SWEEP, ["sweep", "s.yaml", "--folder", "out", "--jobs", n], "--jobs")
        for n in ("0", "-1", "two", "1.5", "", "9999999999", "1e1", "²", "9" * 5000)
    },
    "a sweep's varied field": (SWEEP, ["sweep", "s.yaml", "--folder", "out", "--set", "seed=5"], "seed=5"),
    "a sweep's empty folder name": (SWEEP, ["sweep", "s.yaml", "--folder", ""], "--folder"),
    "a sweep into a file": (SWEEP | {"out": "mine"}, ["sweep", "s.yaml", "--folder", "out"], "out"),
    "a sweep over one's own": (SWEEP | {"out/seed=1/a": "mine"}, ["sweep", "s.yaml", "--folder", "out"], "seed=1"),
    "a scale to keep": ({}, ["keep", ".", "--scale", "../.."], "../.."),
    "keep into a file": ({"f": "x"}, ["keep", ".", "--folder", "f"], "'f'"),
    "an unknown study": ({}, ["measure", "flop"], "flop"),
    "a study by its path": ({}, ["measure", "../flips"], "../flips"),
    "an unknown scale": ({}, ["measure", "flip_backbones", "--scale", "huge"], "huge"),
    **{
        f"seeds {seeds}": ({}, ["measure", "flip_backbones", "--scale", "tiny", "--seeds", *seeds.split()], "seeds")
        for seeds in ("-1", "x", "1.5", "0 0", "9999999999999", "")
    },
    "a study into a file": ({"f": "x"}, ["measure", "flip_backbones", "--scale", "tiny", "--folder", "f"], "'f'"),
    "a ledger of an unknown scale": ({}, ["claims", "--scale", "huge"], "huge"),
    "an unknown claim": ({}, ["claims", "--claim", "H99"], "H99"),
    "a claim in small letters": ({}, ["claims", "--claim", "h1"], "h1"),
    "rows into no folder": ({}, ["claims", "--json", "none/rows.json"], "none"),
    "a coverage of few repetitions": ({}, ["coverage", "--repetitions", "5"], "'5'"),
    "a coverage into a file": ({"f": "x"}, ["coverage", "--folder", "f"], "'f'"),
    "a ledger of no folder": ({}, ["claims", "--folder", "none"], "none"),
    "a ledger of an empty folder": ({"d": None}, ["claims", "--folder", "d"], "'d'"),
    "a ledger of a file": ({"f": "x"}, ["claims", "--folder", "f"], "'f'"),
    "a ledger of no name": ({}, ["claims", "--folder", ""], "--folder"),
    "a ledger of other tables": ({"d/a/b/c.parquet": "x"}, ["claims", "--folder", "d"], "'d'"),
    "a ledger of a damaged table": (PARQUET, ["claims", "--folder", "."], "rates.parquet"),
    "an argument too many": ({}, ["machines", "x"], "x"),
    "an unknown chapter": ({}, ["chapters", "99"], "99"),
    "a chapter of no name": ({}, ["chapters", ""], "names"),
    "an unknown profile": ({}, ["chapters", "00", "--profile", "huge"], "huge"),
    "a book into a file": ({"f": "x"}, ["chapters", "00", "--book", "f"], "--book f"),
    "nothing to run, and no book": ({}, ["chapters", "00", "--no-run"], "--no-run"),
}
