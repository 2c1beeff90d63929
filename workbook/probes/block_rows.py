"""Rows of block coupling as they are made: in memory, and in Parquet files, from which a broken-off call goes on."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from workbook.training.files import read_json, write_json, write_parquet

SAVE_EVERY = 16  # blocks in a file


class BlockRows:
    """The norm and the changes of each block that was made."""

    def __init__(self, folder: str | Path | None, total: int, belongs_to: dict):
        self.folder, self.total, self.new = None if folder is None else Path(folder), total, []
        self.made: dict[int, tuple[float, np.ndarray]] = {}
        self.settings = {"belongs_to": belongs_to, "length": None, "error": None}
        if self.folder is not None and (self.folder / "settings.json").exists():
            self.settings = read_json(self.folder / "settings.json", dict)
            if self.settings.get("belongs_to") != belongs_to:
                raise ValueError(
                    f"{self.folder} holds blocks of another policy, other rollouts or settings; give another."
                )
            for path in sorted(self.folder.glob("blocks-*.parquet")):
                with suppress(OSError, ValueError):  # a damaged file's blocks are made anew
                    self.made |= {row.block: (row.norm, row.changes) for row in pd.read_parquet(path).itertuples()}

    @property
    def length(self) -> float | None:
        return self.settings["length"]

    @property
    def error(self) -> float | None:
        return self.settings["error"]

    def start(self, length: float) -> None:
        if self.settings["length"] is None:
            self._set(length=length)

    def missing(self) -> list[int]:
        return [k for k in range(self.total) if k not in self.made]

    def add(self, k: int, norm: float, changes: np.ndarray) -> None:
        self.made[k] = (norm, changes)
        self.new.append({"block": k, "norm": norm, "changes": changes})
        if len(self.new) == SAVE_EVERY or len(self.made) == self.total:
            if self.folder is not None:
                write_parquet(self.folder / f"blocks-{self.new[0]['block']:06d}.parquet", pd.DataFrame(self.new))
            self.new = []

    def whole(self) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, "K N"]]:
        norms, changes = zip(*(self.made[k] for k in range(self.total)), strict=True)
        return np.array(norms), np.stack(changes).astype(np.float64)

    def finish(self, error: float) -> None:
        self._set(error=error)

    def _set(self, **values) -> None:
        self.settings |= values
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "settings.json", json.loads(json.dumps(self.settings)))
