"""A run in its own process, whose output is the run's log.txt: python -m workbook.app FOLDER"""

import os
import sys

from workbook.places import import_to_stay


def train_folder(folder: str) -> None:
    """Train the run in `folder`, and print how it ended."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    print(import_to_stay("workbook.app.worker").execute(folder).status()["message"])


if __name__ == "__main__":
    train_folder(sys.argv[1])
