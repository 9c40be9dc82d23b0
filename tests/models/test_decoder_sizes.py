"""Sizes of decoders: as published, and as torch's classes count them."""

import jax
import pytest
from flax import linen as nn

from bertfam.config import load
from bertfam.interop import huggingface
from bertfam.models.language_model import init_language_model
from bertfam.models.palm import PalmConfig

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

# gin file, tokens of the published vocabulary, millions of parameters as published (OPT's only in the names of its sizes)
PUBLISHED = (
    ("gpt_base", 40_478, 116.5),
    ("gpt2_small", 50_257, 124.4),
    ("gpt2_medium", 50_257, 354.8),
    ("gpt2_large", 50_257, 774.0),
    ("gpt2_xl", 50_257, 1557.6),
    ("opt_125m", 50_272, None),
    ("opt_350m", 50_272, None),
    ("opt_1_3b", 50_272, None),
    ("opt_2_7b", 50_272, None),
    ("opt_6_7b", 50_272, None),
    ("opt_13b", 50_272, None),
    ("opt_30b", 50_272, None),
    ("opt_66b", 50_272, None),
    ("opt_175b", 50_272, None),
    ("palm_8b", 256_000, 8_630),
    ("palm_62b", 256_000, 62_500),
    ("palm_540b", 256_000, 540_350),
)


def count_parameters(config):
    """Count the parameters, without the rows that only pad the vocabulary."""
    shapes = nn.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    padding = (config.padded_vocab_size - config.require_table_rows) * config.table_width
    return sum(leaf.size for leaf in jax.tree.leaves(shapes)) - padding


@pytest.mark.parametrize(("size", "tokens", "millions"), PUBLISHED)
def test_published_sizes(size, tokens, millions):
    run = load([f"models/{size}.gin", "objectives/causal_lm.gin", "runs/defaults.gin"]).build("Run")
    config = run.objective.sized(tokens).model
    count = count_parameters(config)
    if millions is not None:
        # Within half of the last published digit. PaLM's, in billions with two digits, within that digit: 540.356 is 540.35.
        assert count / 1e6 == pytest.approx(millions, abs=10 if isinstance(config, PalmConfig) else 0.05)
    if not isinstance(config, PalmConfig):
        family = huggingface.family_of(config)
        torch_config = transformers.AutoConfig.for_model(**family.config_to_huggingface(config))
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(torch_config)
        assert type(model).__name__ in family.architectures.values()
        assert sum(parameter.numel() for parameter in model.parameters()) == count
