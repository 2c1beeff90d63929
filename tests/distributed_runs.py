"""Train a run through the command line in several processes; train it again, stop it on the way,
and go on with it.

ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 tests/distributed_runs.py
CONFIG WHOLE STOPPED
"""

import sys
import threading
import time

from workbook.__main__ import MAIN, main
from workbook.app.runs import Run
from workbook.files import broadcast_from_main


def stop_at(run: Run, step: int) -> None:
    while not (run.folder / "metrics.jsonl").exists() or run.status()["step"] < step:
        time.sleep(0.01)
    run.stop()


if __name__ == "__main__":
    config, whole, stopped = sys.argv[1:]
    assert main(["train", config, "--folder", whole]) == 0
    if MAIN:
        threading.Thread(target=stop_at, args=(Run(stopped), 4), daemon=True).start()
    ended = main(["train", config, "--folder", stopped])
    status = broadcast_from_main(Run(stopped).status())
    assert (ended, status["state"]) == (0, "stopped"), (ended, status)
    assert status["step"] >= 4, "there is no checkpoint to go on from"
    sys.exit(main(["resume", stopped]))
