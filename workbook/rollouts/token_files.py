"""Columns of token tables, and token tables read from Parquet files.

step, group, rollout, position, token_id     whole numbers; (step, rollout) names a rollout, (step, group) its group
token, prompt, stopped                       texts; stopped: what took the token's gradient away, "" for nothing
reward, advantage, weight, push              push = weight * advantage = -d loss / d logp
ratio, importance                            pi / pi_old of the loss, and vLLM's correction for the sampler
old_logp, logp, logp_after, entropy          nats; logp before the optimizer step and after it
residual                                     |sum of push| / sum of |push| of the token's place
"""

import json
import re
from pathlib import Path

import pandas as pd

WHOLE = ("step", "group", "rollout", "position", "token_id")
TEXTS = ("token", "prompt", "stopped")
NUMBERS = (
    *("reward", "advantage", "weight", "push", "ratio", "importance"),
    *("old_logp", "logp", "logp_after", "entropy", "residual"),
)
NEEDED = ("group", "rollout", "position", "token")
STOPS = ("", "clip low", "clip high", "truncated", "tool", "entropy", "off-policy", "no advantage", "group")
MAX_TOKENS = 4_000_000  # rows of a table: some 400 MiB


def read_table(file: Path, parquet) -> pd.DataFrame:
    """Return the token table of an open ParquetFile that has the columns NEEDED; texts come as categories.

    `attrs["objective"]` is the loss, where the file names it. Raises ValueError for more than MAX_TOKENS rows.
    """
    if parquet.metadata.num_rows > MAX_TOKENS:
        raise ValueError(f"{file.name} has more than {MAX_TOKENS:,} rows, the most that is read.")
    names = [name for name in (*WHOLE, *TEXTS, *NUMBERS) if name in parquet.schema_arrow.names]
    table = parquet.read(names).to_pandas()
    for name in TEXTS:
        if name in table:
            texts = table[name].astype(object)  # a table without a file's categories
            table[name] = texts.where(texts.notna(), "").astype("category")
    table = table.astype({name: "float32" for name in NUMBERS if name in table})
    if "step" not in table:
        table.insert(0, "step", int((re.findall(r"step-(\d{1,9})\.", file.name) or ["0"])[0]))
    table.attrs = {"source": {"format": "token table", "tokens": "file", "groups": "file"}}
    objective = (parquet.schema_arrow.metadata or {}).get(b"workbook")
    if objective:
        table.attrs["objective"] = json.loads(objective)
    return table
