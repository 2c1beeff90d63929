"""What to change for a machine, and the memory that it will need."""

from __future__ import annotations

from workbook.commands.arguments import as_path


def _machines(args) -> int:
    from workbook.training.machines import machine_table, shared_settings, write_config

    if args.write is not None:
        path, missing = write_config(args.write, args.folder)
        print("\n".join([f"{path} is ready: python -m workbook train {path}", *missing]))
        return 0
    print(machine_table().set_index("machine").T.to_string())
    print("Each with " + ", ".join(f"{key}: {value}" for key, value in shared_settings().items()))
    print("Memory is computed for one card; what the libraries hold is not in it. --write NAME writes a config.")
    return 0


def add_machines(commands) -> None:
    """`machines`: what to change for a machine."""
    machines = commands.add_parser("machines", help="what to change for a machine, and the memory that it will need")
    machines.add_argument("--write", metavar="NAME", help="write a ready config, e.g. qwen2.5-1.5b_t4")
    machines.add_argument("--folder", type=as_path, default=".", help="where to write it (default: here)")
    machines.set_defaults(command=_machines)
