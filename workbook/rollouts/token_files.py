"""Token tables as Parquet files: ours, which a run writes, and anybody's with their columns.

What a file says of itself is not trusted: its columns' kinds are checked before they are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

from workbook.rollouts.foreign import MAX_CHARACTERS, short

WHOLE = ("step", "group", "rollout", "position", "token_id")
TEXTS = ("token", "prompt", "stopped")
NUMBERS = (
    *("reward", "advantage", "weight", "push", "ratio", "importance"),
    *("old_logp", "logp", "logp_after", "entropy", "residual"),
)
NEEDED = ("group", "rollout", "position", "token")
STOPS = ("", "clip low", "clip high", "truncated", "tool", "entropy", "off-policy", "no advantage", "group")
OUTSIDE = ("truncated", "tool")  # of these: what the loss never saw
MAX_TOKENS = 4_000_000  # rows of a table: some 400 MiB
MAX_UNPACKED = 2**30  # bytes of a Parquet file's columns before compression


def check_size(file: Path, metadata) -> list[str]:
    """Names of a Parquet file's texts among `TEXTS`, to be read as dictionaries: repeated ones are then held once.

    Raises ValueError for a file of too many rows, or that unpacks to too much, as its metadata say.
    """
    if metadata.num_rows > MAX_TOKENS:
        raise ValueError(f"{file.name} has more than {MAX_TOKENS:,} rows, the most that is read.")
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    if sum(group.total_byte_size for group in groups) > MAX_UNPACKED:
        raise ValueError(f"{file.name} unpacks to more than {MAX_UNPACKED // 2**20:,} MiB, the most that is read.")
    columns = map(metadata.schema.column, range(metadata.num_columns))
    return [column.path for column in columns if column.path in TEXTS and column.physical_type == "BYTE_ARRAY"]


def read_table(file: Path, parquet) -> pd.DataFrame:
    """A token table from an open ParquetFile that has the columns of `NEEDED`; texts come as categories.

    Columns that are none of ours are left out. Raises ValueError, naming file and column, for values of another kind.
    """
    import pyarrow as pa
    import pyarrow.compute  # as pa.compute

    names = [name for name in (*WHOLE, *TEXTS, *NUMBERS) if name in parquet.schema_arrow.names]
    columns = {}
    for name in names:
        column = parquet.read([name]).column(0)  # one after the other: a foreign file's texts may be large
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        whole = pa.types.is_integer(kind)
        if text != (name in TEXTS) or not (text or whole or (name in NUMBERS and pa.types.is_floating(kind))):
            wanted = "texts" if name in TEXTS else "whole numbers" if name in WHOLE else "numbers"
            raise ValueError(f"{file.name}: column {name} holds {kind}, but must hold {wanted}.")
        if name in NUMBERS:
            columns[name] = column.cast(pa.float32(), safe=False).to_numpy()
        elif name in WHOLE:
            ends = pa.compute.min_max(column).as_py() if len(column) else {"min": 0, "max": 0}
            if column.null_count or ends["min"] < 0 or ends["max"] >= 2**31:
                raise ValueError(f"{file.name}: column {name} must hold a whole number from 0 to 2**31 in every row.")
            columns[name] = column.cast(pa.int32()).to_numpy()
        else:
            columns[name] = _categories(file, name, column)
    table = pd.DataFrame(columns)
    if "step" not in table:
        table.insert(0, "step", np.int32((re.findall(r"step-(\d{1,9})\.", file.name) or ["0"])[0]))
    if "stopped" in table and (unknown := sorted(set(table["stopped"].cat.categories) - set(STOPS))):
        raise ValueError(f"{file.name}: stopped holds {short(unknown[0])}; valid are {', '.join(map(repr, STOPS))}.")
    table.attrs["source"] = {"format": "token table", "tokens": "file", "groups": "file"}
    if objective := _objective(parquet.schema_arrow.metadata):
        table.attrs["objective"] = objective
    return table


def _categories(file: Path, name: str, column) -> pd.Categorical:
    """A column of texts, of which a rollout's many rows have the same, as categories."""
    import pyarrow as pa

    column = (
        column.combine_chunks() if pa.types.is_dictionary(column.type) else column.dictionary_encode().combine_chunks()
    )
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().chunk(0)
    texts = [text or "" for text in column.dictionary.to_pylist()]
    if max(map(len, texts), default=0) > MAX_CHARACTERS:
        raise ValueError(f"{file.name}: column {name} holds a text of more than {MAX_CHARACTERS:,} characters.")
    codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    kept, places = np.unique([*texts, ""], return_inverse=True)
    return pd.Categorical.from_codes(places[codes], kept)  # a null is the last text, ""


def _objective(metadata: Mapping | None) -> dict | None:
    """The objective that a token table's file names, in JSON; None without one that can be read."""
    with suppress(ValueError, RecursionError):
        value = json.loads((metadata or {}).get(b"workbook", b"null")[:65_536])
        return value if isinstance(value, dict) else None
    return None
