"""Published shapes of models, by their names on the hub: what a forecast needs, without asking a hub."""

from __future__ import annotations

from transformers import LlamaConfig, Qwen2Config

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
SMOLLM2_135M = LlamaConfig(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    vocab_size=49152,
    tie_word_embeddings=True,
)
SHAPES = {"Qwen/Qwen2.5-1.5B-Instruct": QWEN_1_5B, "Qwen/Qwen2.5-7B-Instruct": QWEN_7B}
