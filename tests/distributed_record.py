"""A plain trainer with and without its record, and ours, in each process of a launch:
distributed_record.py FOLDER.
"""

import sys
from pathlib import Path

import torch
from test_plain_trl import trained

from workbook.training import CancellationConfig, CancellationTrainer

if __name__ == "__main__":
    torch.set_num_threads(1)
    # beta: TRL would load a reference
    home, settings = Path(sys.argv[1]), {"beta": 0.0, "num_iterations": 2}
    (plain, rows), (recorded, again) = (
        trained(home / f"every {n}", every=n, **settings) for n in (0, 2)
    )
    assert all(torch.equal(value, recorded[name]) for name, value in plain.items())
    assert rows == again
    trained(home / "ours", CancellationTrainer, CancellationConfig, record_tokens=2, **settings)
