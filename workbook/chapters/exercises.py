"""The exercises of chapter 11 on a model that has to fit, and of chapter 12 on a reward that no
talk can win.
"""

from collections.abc import Callable, Mapping

from workbook.app.memory import QWEN_7B, WORKLOAD, at_peak, memory_forecast
from workbook.chapters.grading import UNANSWERED, answer_of, settings_fault

LIMIT = 15.0  # GiB

# completion, answer, the right reward, and what is wrong with a function that gives another
CASES = (
    ("so the answer is 2", "2", 1.0, "is right and plain"),
    ("so the answer is 12", "2", 0.0, "states 12, which only contains a 2"),
    ("so the answer is 23", "2", 0.0, "states 23, which only begins with the digit 2"),
    ("so the answer is -2", "2", 0.0, "states -2, which has another sign"),
    ("then 2 - 6 is 6 ; so the answer is 6", "2", 0.0, "mentions 2 on the way, but answers 6"),
    ("the answer is 2 ; no , the answer is 7", "2", 0.0, "states two answers, and the last is 7"),
    ("I give up 2", "2", 0.0, "ends with 2, but never says that this is the answer"),
    ("2", "2", 0.0, "never says `answer is`"),
    ("", "2", 0.0, "is empty"),
    (
        "the answer is 1 the answer is 2 the answer is 3 ;",
        "3",
        1.0,
        "states the right one of three last, before a `;`",
    ),
    ("so the answer is", "2", 0.0, "stops before its answer"),
)


def check_reward(function: Callable) -> None:
    """Check a reward (completion, answer) -> 1 if the number after the last `answer is` is the
    answer, else 0.

    >>> check_reward(lambda completion, answer: float(answer in completion))
    Not quite: 'so the answer is 12' states 12, which only contains a 2; it should get 0, not 1.
    """
    for completion, answer, right, why in CASES:
        if (got := answer_of(function, completion, answer)) is None:
            return
        if got.numel() != 1:
            print(f"Not quite: it returned the shape {tuple(got.shape)}; return one number.")
            return
        if float(got) != right:
            print(f"Not quite: {completion!r} {why}; it should get {right:g}, not {float(got):g}.")
            return
    print("Right: what is paid is the last stated answer, and nothing said on the way.")


def large_run(quantization="nf4", lora=16, optimizer="adamw_torch", gradient_checkpointing=False):
    """`memory_forecast` of a 7B model in micro-batches of 8."""
    return memory_forecast(QWEN_7B, **WORKLOAD | {"microbatch": 8} | locals())


def check_fits(change: Mapping | None) -> None:
    """Check changed settings of `large_run` with which it fits in LIMIT.

    >>> check_fits({"microbatch": 1})  # doctest: +ELLIPSIS
    Not quite: there is no setting 'microbatch'; there are quantization, lora, ...
    """
    fault = None if change is None else settings_fault(change, large_run)
    if change is None or fault:
        print(f"Not quite: {fault}" if fault else UNANSWERED)
        return
    try:
        parts = at_peak(large_run(**change)).set_index("part")["mib"] / 1024
    except (TypeError, ValueError, RuntimeError) as error:
        print(f"Not quite: {error}")
        return
    needs = (
        f"it needs {parts.sum():.1f} GiB, of which {parts.max():.1f} are its largest part,"
        f" {parts.idxmax()!r}."
    )
    right = (
        f"Right: {parts.sum():.1f} GiB. What was kept for the backward pass is computed again,"
        " layer by layer."
    )
    print(right if parts.sum() <= LIMIT else f"Not quite: {needs}")
