"""Sizes of BERT and of families that are options of it: as published, and as torch's classes count them."""

import numpy as np
import pytest

from bertfam.config import load
from bertfam.interop import huggingface

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

# gin file, tokens of the published vocabulary, parameters of the encoder with its pooler (ERNIE: of a BERT-base with as many)
PUBLISHED = (
    ("bert_base", 30_522, 109_482_240),
    ("bert_large", 30_522, 335_141_888),
    ("roberta_base", 50_265, 124_645_632),
    ("roberta_large", 50_265, 355_359_744),
    ("bigbird_base", 50_358, 127_468_800),
    ("bigbird_large", 50_358, 359_123_968),
    ("longformer_base", 50_265, 148_659_456),
    ("longformer_large", 50_265, 434_600_960),
    ("spanbert_base", 28_996, 108_310_272),
    ("spanbert_large", 28_996, 333_579_264),
    ("structbert_large", 30_522, 335_141_888),
    ("ernie_base", 17_964, 99_837_696),
)


def count_parameters(config, parts):
    """Count the parameters, without the rows that only pad the vocabulary."""
    shapes = huggingface.shapes_of(config, frozenset(parts))
    entries = {entry.ours: entry for entry in huggingface.family_of(config).entries(config)}
    total = 0
    for path, leaf in flat(shapes):
        rows = config.require_table_rows if entries[path].vocabulary else leaf.shape[0]
        total += rows * int(np.prod(leaf.shape[1:]))
    return total


def flat(tree, path=()):
    if not isinstance(tree, dict):
        return [("/".join(path), tree)]
    return [pair for name, value in tree.items() for pair in flat(value, (*path, name))]


@pytest.mark.parametrize(("size", "tokens", "published"), PUBLISHED)
def test_published_sizes(size, tokens, published):
    run = load([f"models/{size}.gin", "objectives/mlm.gin", "runs/defaults.gin"]).build("Run")
    config = run.objective.sized(tokens).model
    assert count_parameters(config, {"encoder", "pooler"}) == published

    family = huggingface.family_of(config)
    content = family.config_to_huggingface(config)
    torch_config = getattr(transformers, next(iter(family.architectures.values())).removesuffix("Model") + "Config")(**content)
    for parts, name in family.architectures.items():
        if "mlm_head" in parts:
            with torch.device("meta"):
                model = getattr(transformers, name)(torch_config)
            # BigBird's has a pooler, which it does not use.
            unused = {"pooler"} if any("pooler" in tensor for tensor, _ in model.named_parameters()) else set()
            assert sum(parameter.numel() for parameter in model.parameters()) == count_parameters(config, parts | unused), name
