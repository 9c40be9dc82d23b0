"""Sizes of decoders: as published, and as torch's classes count them."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from bertfam.config import load
from bertfam.interop import huggingface
from bertfam.models.generator import init_generator
from bertfam.models.palm import PalmConfig

# gin file, tokens of the published vocabulary, millions of parameters as published (those of GPT-2 and OPT are counted by torch)
PUBLISHED = (
    ("gpt_base", 40_478, 116.5),
    ("gpt2_small", 50_257, 124.4),
    ("gpt2_medium", 50_257, 354.8),
    ("gpt2_large", 50_257, 774.0),
    ("gpt2_xl", 50_257, 1557.6),
    ("opt_125m", 50_272, 125),
    ("opt_350m", 50_272, 331),
    ("opt_1_3b", 50_272, 1_316),
    ("opt_2_7b", 50_272, 2_652),
    ("opt_6_7b", 50_272, 6_658),
    ("opt_13b", 50_272, 12_853),
    ("opt_30b", 50_272, 29_975),
    ("opt_66b", 50_272, 65_719),
    ("opt_175b", 50_272, 174_605),
    ("palm_8b", 256_000, 8_630),
    ("palm_62b", 256_000, 62_500),
    ("palm_540b", 256_000, 540_350),
)


def config_of(size, tokens):
    made = load([f"models/{size}.gin"], ["Holder.model = %MODEL"]) if False else None
    return made


def parameters(config):
    """How many there are, without the rows that only pad the vocabulary."""
    shapes = nn.unbox(jax.eval_shape(lambda key: init_generator(config, key), jax.random.key(0)))
    padding = (config.padded_vocab_size - config.known_table_rows) * config.table_width
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes)) - padding
