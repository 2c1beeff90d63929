"""Make the committed policies of the family: ten units, three for tuning, and one of three operands
for the book.

    python data/family/make_family.py

SFT seeds 1, 2, 3, ... are trained one after another (`workbook.studies.making`), rounded to 8 bits,
and measured as rounded. One whose sampled reward is below MIN_REWARD or whose greedy reward is
below MIN_GREEDY has learned too little and is passed over; the first ten others are the units, the
next three serve tuning. EXAMPLE answers the one prompt that the book carries through its chapters.
What is there is not made again.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from workbook.places import file_hash
from workbook.policies.family import Member, committed_file
from workbook.policies.models import seeded
from workbook.policies.small import from_int8, make_model, make_tokenizer, to_int8
from workbook.studies.making import MEASURED_PROMPTS, measure_start, train_supervised

HERE = Path(__file__).parent
MIN_REWARD, MIN_GREEDY = 0.2, 0.5  # chance is 1 / 10
ROLES = ["unit"] * 10 + ["tuning"] * 3
EXAMPLE = Member(seed=0, operands=3)


def made(member: Member, role: str) -> dict:
    """Train, round and measure a policy; write its file if it has learned enough for its role."""
    tokenizer = make_tokenizer(member.task)
    with seeded(member.seed, torch.device("cpu")):
        model = make_model(tokenizer)
        train_supervised(model, tokenizer, member.task, member.sft_steps, seed=member.seed)
        stored = to_int8(model.state_dict())
        model.load_state_dict(from_int8(stored))
        measured = measure_start(
            model.eval(), tokenizer, member.task, MEASURED_PROMPTS, member.seed
        )
    measured = {name: round(x, 4) for name, x in measured.items()}
    if measured["reward"] < MIN_REWARD or measured["greedy"] < MIN_GREEDY:
        return {"seed": member.seed, "role": "passed over", "measured": measured}
    save_file(stored, path := committed_file(member))
    return {"seed": member.seed, "role": role, "measured": measured, "sha256": file_hash(path)}


def main() -> None:
    torch.set_num_threads(1)  # sums in another order make other bytes
    path = HERE / "members.json"
    members = json.loads(path.read_text())["members"] if path.exists() else []
    while left := [*ROLES, "example"][sum(member["role"] != "passed over" for member in members) :]:
        example = left[0] == "example"
        member = made(EXAMPLE if example else Member(len(members) + 1), left[0])
        members.append(member | {"name": EXAMPLE.name} if example else member)
        about = {
            "made_by": "data/family/make_family.py",
            "prompts": MEASURED_PROMPTS,
            "temperature": 1.0,
        }
        path.write_text(json.dumps({**about, "members": members}, indent=1) + "\n")
        print(member, flush=True)


if __name__ == "__main__":
    main()
