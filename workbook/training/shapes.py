"""Public shapes of models that are too large to ship, for memory forecasts: configs alone, no weights."""

import torch
from transformers import Qwen2Config

# Sizes as published with Qwen2.5-1.5B and Qwen2.5-7B.
QWEN_1_5B = Qwen2Config(
    hidden_size=1536,
    intermediate_size=8960,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
)
QWEN_7B = Qwen2Config(
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    vocab_size=152064,
    tie_word_embeddings=False,
)
# One generation batch on a T4-class card: 32 rollouts of 128 + 256 tokens in half precision, one at a time backward.
WORKLOAD = {
    "rollouts": 32,
    "microbatch": 1,
    "prompt_length": 128,
    "completion_length": 256,
    "dtype": torch.float16,
    "device": "cuda",
}
