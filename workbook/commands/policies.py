"""Make policies that differ in one thing."""

from __future__ import annotations

from workbook.commands.arguments import as_count, read_settings, settings_option


def _family(args) -> int:
    from workbook.policies.family import DEFAULTS, Member, member_facts

    dials = read_settings(args.set)
    if unknown := [dial for dial in dials if dial not in DEFAULTS or dial == "seed"]:
        raise ValueError(f"--set {unknown[0]} is no dial of the family: choose of {', '.join([*DEFAULTS][1:])}.")
    for member in [Member(seed, **dials) for seed in args.seeds]:
        measured = member_facts(member)["measured"]
        print(
            f"{member.name}: reward {measured['reward']:.3f}, template words {measured['p_template']:.3f}", flush=True
        )
    return 0


def add_family(commands) -> None:
    """`family`: make policies that differ in one thing."""
    family = commands.add_parser("family", help="make policies that differ in one thing; those made are kept")
    family.add_argument("--seeds", type=as_count(0, 2**31 - 1), nargs="+", required=True, help="of their training")
    settings_option(family)
    family.set_defaults(command=_family)
