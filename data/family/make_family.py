"""Make the committed policies of the family: ten units and three for tuning.

    python data/family/make_family.py

SFT seeds 1, 2, 3, ... are trained one after another (`workbook.policies.sft`), rounded to 8 bits, and measured as
rounded. One whose sampled reward is below MIN_REWARD or whose greedy reward is below MIN_GREEDY has learned too little
and is passed over; the first ten others are the units, the next three serve tuning. What is there is not made again.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from workbook.places import file_hash
from workbook.policies.family import MEASURED_PROMPTS, Member, packed, unpacked
from workbook.policies.models import seeded
from workbook.policies.sft import make_model, make_tokenizer, measure, train

HERE = Path(__file__).parent
MIN_REWARD, MIN_GREEDY = 0.2, 0.5  # chance is 1 / 10
ROLES = ["unit"] * 10 + ["tuning"] * 3


def made(seed: int) -> dict:
    """Train, round and measure the policy of an SFT seed; its file is written if it has learned enough."""
    task = Member(seed).task
    tokenizer = make_tokenizer(task)
    with seeded(seed, torch.device("cpu")):
        model = make_model(tokenizer)
        train(model, tokenizer, task, Member(seed).sft_steps, seed=seed)
        stored = packed(model.state_dict())
        model.load_state_dict(unpacked(stored))
        measured = measure(model.eval(), tokenizer, task, MEASURED_PROMPTS, seed)
    member = {"seed": seed, "role": "passed over", "measured": {name: round(x, 4) for name, x in measured.items()}}
    if measured["reward"] >= MIN_REWARD and measured["greedy"] >= MIN_GREEDY:
        path = HERE / f"seed={seed}.safetensors"
        save_file(stored, path)
        member |= {"role": "", "sha256": file_hash(path)}
    return member


def main() -> None:
    torch.set_num_threads(1)  # sums in another order make other bytes
    path = HERE / "members.json"
    members = json.loads(path.read_text())["members"] if path.exists() else []
    while (kept := sum(member["role"] != "passed over" for member in members)) < len(ROLES):
        member = made(len(members) + 1)
        if member["role"] != "passed over":
            member["role"] = ROLES[kept]
        members.append(member)
        about = {"made_by": "data/family/make_family.py", "prompts": MEASURED_PROMPTS, "temperature": 1.0}
        path.write_text(json.dumps({**about, "members": members}, indent=1) + "\n")
        print(member, flush=True)


if __name__ == "__main__":
    main()
