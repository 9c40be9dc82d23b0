"""Sizes of encoder-decoders: as published, and as torch's classes count them."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from bertfam.config import load
from bertfam.interop import huggingface
from bertfam.models.language_model import init_language_model

# gin file, rows of the published word table, millions of parameters in their published digits
PUBLISHED = (
    ("t5_small", 32_128, "60.5"),
    ("t5_base", 32_128, "222.9"),
    ("t5_large", 32_128, "737.7"),
    ("t5_3b", 32_128, "2.85e3"),
    ("t5_11b", 32_128, "11.3e3"),
    ("t5_1_1_small", 32_128, "77.0"),
    ("t5_1_1_base", 32_128, "247.6"),
    ("t5_1_1_large", 32_128, "783.2"),
    ("t5_1_1_xl", 32_128, "2.85e3"),
    ("t5_1_1_xxl", 32_128, "11.1e3"),
    ("mt5_small", 250_112, "300"),
    ("mt5_base", 250_112, "582"),
    ("mt5_large", 250_112, "1.23e3"),
    ("mt5_xl", 250_112, "3.74e3"),
    ("mt5_xxl", 250_112, "12.9e3"),
    ("bart_base", 50_265, "139.4"),
    ("bart_large", 50_265, "406.3"),
)


def count_parameters(config):
    """Count the trained parameters, without the rows that only pad the vocabulary."""
    shapes = nn.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    shapes.get("lm_head", {}).pop("bias", None)
    tables = 1 if config.tie_embeddings else 2
    padding = (config.padded_vocab_size - config.require_table_rows) * config.hidden_size * tables
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in jax.tree.leaves(shapes)) - padding


def published_config(size, rows):
    objective = "bart" if size.startswith("bart") else "t5_random_spans"
    run = load([f"models/{size}.gin", f"objectives/{objective}.gin", "runs/defaults.gin"]).build("Run")
    return run.objective.sized(rows).model


@pytest.mark.parametrize(("size", "rows", "millions"), PUBLISHED)
def test_published_sizes(size, rows, millions):
    """Sizes agree to the last published digit."""
    digits = millions.partition("e")[0]
    unit = 10.0 ** (millions.endswith("e3") * 3 - len(digits.partition(".")[2]))
    assert count_parameters(published_config(size, rows)) / 1e6 == pytest.approx(float(millions), abs=unit / 2 + 1e-9)


@pytest.mark.parametrize("size", ["t5_small", "t5_1_1_small", "mt5_small", "bart_base"])
def test_sizes_match_torch(size):
    """New torch models of version 1.1 and of mT5 have a tied head, although published files have a head of their own."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = published_config(size, dict((name, rows) for name, rows, _ in PUBLISHED)[size])
    family = huggingface.family_of(config)
    torch_config = transformers.AutoConfig.for_model(**family.config_to_huggingface(config))
    with torch.device("meta"):
        model = transformers.AutoModelForSeq2SeqLM.from_config(torch_config)
    assert type(model).__name__ in family.architectures.values()
    head = 0 if config.tie_embeddings else config.require_table_rows * config.hidden_size
    assert sum(parameter.numel() for parameter in model.parameters()) == count_parameters(config) - head
