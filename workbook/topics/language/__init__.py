"""Language models at which something is decided: the questions of other rooms, asked of SmolLM2 tuned to sums (10)."""
