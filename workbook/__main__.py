"""The command line: train, resume and sweep runs, measure studies, judge the claims, run the chapters.

python -m workbook train data/configs/chain.yaml --set learning_rate=5e-4 --set batching=query_preserved
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from workbook.training.config_text import parse_yaml
from workbook.training.messages import explain_error, one_line, show_value

LONGEST = 400  # characters of a sentence on stderr
MAIN = os.environ.get("RANK", "0") == "0"  # under `accelerate launch` one process speaks for all


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status, 2 for a request that can't be met, with one sentence on stderr."""
    parser, texts = _parser(), sys.argv[1:] if argv is None else argv
    for text in texts:
        if text.startswith("--") and text.endswith("=--"):  # which argparse takes for a list
            parser.error(f"argument {text[:-3]}: expected one argument")
    args = parser.parse_args(texts)
    try:
        return args.command(args)
    except KeyboardInterrupt:
        return _refuse("Interrupted.", 130)
    except BrokenPipeError:  # whoever read the output, as `head` does, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
        return _refuse(explain_error(error, LONGEST), 2)


def _refuse(sentence: str, status: int) -> int:
    if MAIN:
        print(sentence, file=sys.stderr)
    return status


def _train(args) -> int:
    from workbook.training.plan import fits
    from workbook.training.run_config import RunConfig
    from workbook.training.validate import check_run
    from workbook.training.worker import train

    config = RunConfig.load(args.config).override(_settings(args.set))
    if MAIN:
        check_run(config)
        if sentence := fits(config):
            print(f"Warning: {sentence}", file=sys.stderr)
    return _report(train(config, args.folder, progress=True))


def _resume(args) -> int:
    from workbook.training.processes import broadcast_from_main
    from workbook.training.run_config import RunConfig
    from workbook.training.runs import FINAL_STATES, load_run
    from workbook.training.worker import execute

    run = load_run(args.run)
    RunConfig.load(run.folder / "config.yaml")  # before anything is written
    state = broadcast_from_main(run.status()["state"])
    if state not in FINAL_STATES:
        raise ValueError(f"{run.folder} is {state} in process {run.status()['pid']}; stop it first.")
    return _report(execute(run.folder, progress=True))


def _report(run) -> int:
    status = run.status()
    if MAIN:
        print(f"{status['message']} It lies in {run.folder}")
    return 0 if status["state"] in ("finished", "stopped") else 1


def _sweep(args) -> int:
    from workbook.training.plan import fits
    from workbook.training.run_config import place
    from workbook.training.sweeps import check_grid, checked_runs, load_sweep, sweep

    config, grid = load_sweep(args.config)
    settings = _settings(args.set)
    varied = {place(key) for part in check_grid(grid) for key in part}
    if both := [f"{key}={show_value(value)}" for key, value in settings.items() if place(key) in varied]:
        raise ValueError(f"--set {both[0]} would be overridden by the grid of {args.config}, which varies it.")
    config = config.override(settings)
    folder = args.folder or Path("runs") / Path(args.config).stem
    runs = [run for _, run in checked_runs(config, grid)]
    if sentence := fits(runs[0], at_once=min(args.jobs, len(runs))):
        print(f"Warning: {sentence}", file=sys.stderr)
    table = sweep(config, grid, folder, n_jobs=args.jobs)
    print(table.drop(columns="message").to_string(index=False))
    failed = int((table["state"] != "finished").sum())
    print(f"{len(table) - failed} of {len(table)} runs finished. They lie in {folder}")
    return 1 if failed else 0


def _keep(args) -> int:
    from workbook.studies.keep import keep_sweep

    print(keep_sweep(args.sweep, args.scale, args.folder))
    return 0


def _measure(args) -> int:
    from workbook.studies import measure

    for folder in measure(args.study, args.scale, args.seeds, args.folder):
        print(folder)
    return 0


def _family(args) -> int:
    from workbook.policies.family import DEFAULTS, Member, member_facts

    dials = _settings(args.set)
    if unknown := [dial for dial in dials if dial not in DEFAULTS or dial == "seed"]:
        raise ValueError(f"--set {unknown[0]} is no dial of the family: choose of {', '.join([*DEFAULTS][1:])}.")
    for member in [Member(seed, **dials) for seed in args.seeds]:
        measured = member_facts(member)["measured"]
        print(
            f"{member.name}: reward {measured['reward']:.3f}, template words {measured['p_template']:.3f}", flush=True
        )
    return 0


def _claims(args) -> int:
    from workbook.claims import CLAIMS, format_ledger, format_summary, ledger, ledger_json

    if args.claim is not None and args.claim not in CLAIMS:
        raise ValueError(f"--claim {one_line(args.claim, 60)} is unknown: choose one of {', '.join(CLAIMS)}.")
    if args.permuted and (args.claim or args.scale):
        raise ValueError("--permuted is of all primary rows; leave --claim and --scale out.")
    for option in ("html", "json"):
        if getattr(args, option) is not None:
            _check_writable(getattr(args, option), f"--{option}")
    whole = bool(args.claim or args.json or args.html)  # the rows that decide nothing take most of the time
    table = ledger(args.scale, args.folder, [args.claim] if args.claim else None, described=whole)
    print(format_ledger(table, commands=True) if args.claim else format_summary(table))
    if args.permuted:
        print(_by_chance(table, args.permuted))
    if args.json is not None:
        Path(args.json).write_text(ledger_json(table), encoding="utf-8")
        print(f"Every row, with what decided it, lies in {args.json}")
    if args.html is not None:
        from workbook.book.ledger_page import ledger_page

        Path(args.html).write_text(ledger_page(table), encoding="utf-8")
        print(f"The ledger as a page lies in {args.html}")
    return 0


def _by_chance(table, draws: int) -> str:
    """How many primary rows would be supported if each unit's side of the threshold were a coin."""
    from workbook.claims import permuted_outcomes

    drawn = permuted_outcomes(table, draws)
    if drawn.empty or not drawn["rows"].iloc[0]:
        return "Signs at random: no primary row can be judged yet."
    share, alone = (drawn[name] / drawn["rows"] for name in ("supported", "uncorrected"))
    return (
        f"Signs at random, {draws} draws of {drawn['rows'].iloc[0]} primary rows: {share.mean():.2%} of rows supported "
        f"(at least one in {(share > 0).mean():.1%} of draws); {alone.mean():.2%} by the interval alone."
    )


def _coverage(args) -> int:
    from workbook.claims.coverage import coverage_table, coverage_text, keep_coverage

    if args.folder is not None and Path(args.folder).exists() and not Path(args.folder).is_dir():
        raise ValueError(f"folder={args.folder!r} is no folder; give the path of one.")
    table = coverage_table(args.repetitions, args.seed)
    print(coverage_text(table))
    if args.folder is not None:
        print(keep_coverage(table, args.folder, args.repetitions, args.seed))
    return 0


def _check_writable(path: str, option: str) -> None:
    """Raise a ValueError unless a file can be written at `path`, before the work that it is to hold."""
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{option} {path} is a folder; give the path of a file in it.")
    if not file.parent.is_dir():
        raise ValueError(f"{option} {path} can't be written: there is no folder {file.parent}.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ValueError(f"{option} {path} can't be written: permission denied.")


def _write_report(args) -> int:
    from workbook.book.report_page import default_page, report_text, write_report
    from workbook.policies.load import load_policy
    from workbook.probes import model_findings, report_findings
    from workbook.rollouts import read_rollouts

    page = default_page(args.run) if args.html is None else args.html
    _check_writable(page, "--html")
    if Path(page).resolve() == Path(args.run).expanduser().resolve():
        raise ValueError(f"--html {page} is the file that is read; give another.")
    policy = None if args.model is None else load_policy(args.model)
    table = read_rollouts(args.run, None if policy is None else policy.tokenizer)
    report = report_findings(table, None if policy is None else model_findings(table, policy))
    print(report_text(report))
    write_report(report, page)
    print(f"The report as a page lies in {page}")
    return 0


def _glossary(args) -> int:
    from workbook.book.glossary import glossary_text

    print(glossary_text(args.term))
    return 0


def _estimators(args) -> int:
    from workbook.training.credit import estimators_text

    print(estimators_text())
    return 0


def _arena(args) -> int:
    from workbook.topics.arena import contender, contest, measured_table, place, save_chart, setting_of
    from workbook.topics.arena import table_markdown as markdown
    from workbook.topics.arena import table_text as text

    if args.chart is not None:
        _check_chart(args.chart)
    asked = {"--small": args.small or None, "--units": args.units, "--folder": args.folder}
    if args.rule is None and (idle := [option for option, value in asked.items() if value is not None]):
        raise ValueError(f"{idle[0]} is of a contest; name a rule with --rule, or leave it out.")
    rule = None if args.rule is None else contender(args.rule).name
    table = measured_table()
    if rule is not None:
        folder = "runs/arena" if args.folder is None else args.folder
        own = contest(args.rule, setting_of(args.small), args.units, folder, lambda line: print(line, flush=True))
        table = place(table, own, rule)
    print(markdown(table) if args.markdown else text(table))
    if args.chart is not None:
        save_chart(table, args.chart)
        print(f"The chart lies in {args.chart}")
    return 0


def _check_chart(path: str) -> None:
    """Raise a ValueError unless a chart can be written at `path`."""
    if Path(path).suffix.lower() not in (".png", ".svg", ".html"):
        raise ValueError(f"--chart {path} must end in .png, .svg or .html.")
    _check_writable(path, "--chart")


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


def _gpu(args) -> int:
    from workbook.studies.gpu.campaign import ROWS, run_rows

    if unknown := [row for row in args.rows or () if row not in ROWS]:
        raise ValueError(f"--rows {one_line(unknown[0], 60)} is unknown: choose of {', '.join(ROWS)}.")
    return run_rows(args.rows, args.folder, args.minutes, args.dry)


def _attack(args) -> int:
    from workbook.tasks import get_task
    from workbook.tasks.attack import print_attack
    from workbook.training.run_config import RunConfig

    config = RunConfig.load(args.config)
    return print_attack(get_task(config.task, **config.task_options), args.prompts, args.seed)


def _chapters(args) -> int:
    from workbook.book.chapters import ChapterFailed, find_chapters, run_chapters

    find_chapters(args.names)  # before what takes long
    if args.book is not None and Path(args.book).exists() and not Path(args.book).is_dir():
        raise ValueError(f"--book {args.book} is no folder; give the path of one.")
    if args.book is not None:
        above = next(path for path in [Path(args.book), *Path(args.book).absolute().parents] if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise ValueError(f"--book {args.book} can't be written: {above} is no folder that you may write to.")
    table = None
    if args.book is not None:  # so that damaged results are reported before what takes long
        from workbook.claims import ledger

        table = ledger()
    try:
        executed = run_chapters(args.profile, names=args.names or None, in_place=args.in_place)
    except ChapterFailed as error:
        print(error, file=sys.stderr)  # with the lines of the cell
        return 2
    if args.book is not None:
        from workbook.book.pages import render_book

        notebooks = {name: chapter.notebook for name, chapter in executed.items()}
        seconds = {name: chapter.seconds for name, chapter in executed.items()}
        render_book(notebooks, seconds, args.profile, Path(args.book), table)
    return 0


def _settings(texts: list[str]) -> dict[str, object]:
    """`key=value` texts, their values read as a config's are; ValueError for one that is none, or comes twice."""
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {text!r} must be key=value, e.g. --set learning_rate=5e-4.")
        if key in settings:
            raise ValueError(f"--set {key}={one_line(value, 60)} is the second value of {key}; give it once.")
        try:
            settings[key] = parse_yaml(value)
        except ValueError as error:
            raise ValueError(f"--set {one_line(text, 100)} {error}.") from None
    return settings


def _path(text: str) -> str:
    """An argument that is a path. Raises ArgumentTypeError for one that is empty or not printable."""
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} must be a path")
    return text


def _count(least: int, most: int):
    """The type of an argument that is an integer in a range."""

    def integer(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:10]) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least {least} and at most {most}")
        return int(text)

    return integer


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str):
        self.exit(2, f"{one_line(message, LONGEST - 60)}; {self.prog} --help says more.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m workbook", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a run from a YAML config")
    train.add_argument("config", type=_path, help="e.g. data/configs/chain.yaml")
    train.add_argument("--folder", type=_path, help="where to keep the run (default: a new folder in runs/)")
    train.set_defaults(command=_train)

    resume = commands.add_parser("resume", help="go on with a run from its newest intact checkpoint")
    resume.add_argument("run", type=_path, help="the run's folder")
    resume.set_defaults(command=_resume)

    sweep = commands.add_parser("sweep", help="train every combination of a grid of settings")
    sweep.add_argument("config", type=_path, help="a run's YAML with a grid, e.g. data/configs/chain_seeds.yaml")
    sweep.add_argument("--folder", type=_path, help="where to keep its runs (default: runs/ and the config's name)")
    sweep.add_argument("--jobs", type=_count(1, 1024), default=2, help="runs at a time (default: 2)")
    sweep.set_defaults(command=_sweep)

    family = commands.add_parser("family", help="make policies that differ in one thing; those made are kept")
    family.add_argument("--seeds", type=_count(0, 2**31 - 1), nargs="+", required=True, help="of their training")
    family.set_defaults(command=_family)

    for command in (train, sweep, family):
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="override a field; may be repeated"
        )

    keep = commands.add_parser("keep", help="write the outcomes of a sweep's runs, small enough to commit")
    keep.add_argument("sweep", type=_path, help="the sweep's folder, e.g. runs/batching")
    keep.add_argument("--scale", help="default: that of the runs' policy")
    keep.add_argument("--folder", type=_path, help="where to write (default: data/results)")
    keep.set_defaults(command=_keep)

    measure = commands.add_parser("measure", help="make the tables of a study, seed by seed; those made are kept")
    measure.add_argument("study", help="e.g. flips")
    measure.add_argument("--scale", default="bundled", help="default: bundled; family, smollm2_chat, ..., tiny")
    measure.add_argument("--seeds", type=_count(0, 2**31 - 1), nargs="+", help="default: all of the scale's")
    measure.add_argument("--folder", type=_path, help="where to keep the tables (default: data/results)")
    measure.set_defaults(command=_measure)

    claims = commands.add_parser("claims", help="what was measured of each claim, and the outcomes")
    claims.add_argument("--scale", help="e.g. family, bundled or smollm2_chat (default: all of them)")
    claims.add_argument("--claim", help="measurements of one, and the commands that recompute them, e.g. H11")
    claims.add_argument("--permuted", type=_count(1, 100_000), metavar="DRAWS", help="outcomes with signs at random")
    claims.add_argument("--json", type=_path, metavar="FILE", help="also write all rows, with what decided them")
    claims.add_argument("--html", type=_path, metavar="FILE", help="also write it as a page")
    claims.add_argument("--folder", type=_path, help="of the studies' tables (default: data/results)")
    claims.set_defaults(command=_claims)

    coverage = commands.add_parser("coverage", help="how often the ledger's intervals hold the truth, simulated")
    coverage.add_argument("--repetitions", type=_count(100, 10**6), default=20_000, help="a cell (default: 20000)")
    coverage.add_argument("--seed", type=_count(0, 2**31 - 1), default=0)
    coverage.add_argument("--folder", type=_path, help="also write the table and its manifest to coverage/ in it")
    coverage.set_defaults(command=_coverage)

    report = commands.add_parser("report", help="what training did to the tokens of a run, yours or another program's")
    report.add_argument("run", type=_path, help="a run's folder, or a file or folder of TRL, prime-rl or JSON lines")
    report.add_argument("--model", help="score tokens, and couple them, with this policy: a name, folder or hub id")
    report.add_argument("--html", type=_path, metavar="FILE", help="default: report.html in the folder, or beside it")
    report.set_defaults(command=_write_report)

    glossary = commands.add_parser("glossary", help="the book's terms, with formula, unit and the code behind them")
    glossary.add_argument("term", nargs="?", help="one of them, e.g. push; all by default")
    glossary.set_defaults(command=_glossary)

    estimators = commands.add_parser("estimators", help="what a run may take for an advantage, and how to write one")
    estimators.set_defaults(command=_estimators)

    arena = commands.add_parser("arena", help="what each credit rule makes of as many tokens, yours too")
    arena.add_argument("--rule", help="measure this one and place it: own:credit.py:f, or a name of `estimators`")
    arena.add_argument("--small", action="store_true", help="half the budget and smaller samples: minutes for a rule")
    arena.add_argument("--units", type=_count(2, 1000), help="policies x seeds (default: 6 if small, else 10)")
    arena.add_argument("--folder", type=_path, help="where to keep what is measured (default: runs/arena)")
    arena.add_argument("--chart", type=_path, metavar="FILE", help="also draw the table: .png, .svg or .html")
    arena.add_argument("--markdown", action="store_true", help="print the table as README has it")
    arena.set_defaults(command=_arena)

    machines = commands.add_parser("machines", help="what to change for a machine, and the memory that it will need")
    machines.add_argument("--write", metavar="NAME", help="write a ready config, e.g. qwen2.5-1.5b_t4")
    machines.add_argument("--folder", type=_path, default=".", help="where to write it (default: here)")
    machines.set_defaults(command=_machines)

    gpu = commands.add_parser("gpu", help="measure everything that needs a GPU; rows that are done are kept")
    gpu.add_argument("--dry", action="store_true", help="the same code at tiny sizes on a CPU")
    gpu.add_argument(
        "--rows", nargs="+", metavar="ROW", help="equality, speed, peaks, chapter11, mechanism (default: all)"
    )
    gpu.add_argument("--minutes", type=_count(1, 10_000), default=40, help="until it ends in order (default: 40)")
    gpu.add_argument("--folder", type=_path, help="where to write (default: data/results/gpu; a temporary one if dry)")
    gpu.set_defaults(command=_gpu)

    attack = commands.add_parser("attack-reward", help="which of some forty hacks the reward of a config pays")
    attack.add_argument("config", type=_path, help="a run's YAML, e.g. data/configs/chain.yaml")
    attack.add_argument("--prompts", type=_count(1, 10_000), default=32, help="of the task's, to try them on (32)")
    attack.add_argument("--seed", type=_count(0, 2**31 - 1), default=0)
    attack.set_defaults(command=_attack)

    chapters = commands.add_parser("chapters", help="execute the chapters top to bottom")
    chapters.add_argument("names", nargs="*", type=_path, help="e.g. 04; all by default")
    chapters.add_argument("--profile", default="smoke", choices=("smoke", "teach", "full"))
    chapters.add_argument("--in-place", action="store_true", help="write the outputs into notebooks/")
    chapters.add_argument("--book", type=_path, metavar="FOLDER", help="render HTML pages with an index")
    chapters.set_defaults(command=_chapters)
    return parser


if __name__ == "__main__":
    sys.exit(main())
