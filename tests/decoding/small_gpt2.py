"""Random GPT-2 over bytes with one token for padding and end of text; as a script it prints its texts on a mesh."""

import json

import jax
import numpy as np
from flax import linen as nn
from tokenizers.pre_tokenizers import ByteLevel

from bertfam.api import LanguageModel
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.decoding.end_tokens import end_tokens
from bertfam.decoding.strategies import BeamSearch, Limits, Sample
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model
from bertfam.sharding.mesh import MeshShape

END = "<|endoftext|>"
VOCABULARY = ByteBpe([*sorted(ByteLevel.alphabet()), END], [], layout=LAYOUTS["gpt2"])
CONFIG = Gpt2Config(vocab_size=VOCABULARY.size, num_layers=2, hidden_size=32, num_heads=4, feed_forward_size=64, max_length=256)
PROMPTS = ["abc", "nine more", f"it ended.{END}And", f"{END}a", "x" * 20, "The end" + END, "", "so"]
ON_MESHES = [
    (Sample(top_k=50, top_p=0.95, seed=3), Limits(8), 2),
    (BeamSearch(3), Limits(8, min_new_tokens=1, no_repeat_ngrams=2), 2),
]


def model(seed=0):
    """Return a model with large position embeddings and small biases, so that texts differ, and with a likely end token."""
    shapes = nn.unbox(jax.eval_shape(lambda key: init_language_model(CONFIG, key), jax.random.key(0)))
    generator = np.random.default_rng(seed)
    scales = {"bias": 0.06, "scale": 0.3}

    def values(path, leaf):
        names = [part.key for part in path]
        scale = 0.9 if "position" in names else scales.get(names[-1], 0.3)
        return np.float32(scale * generator.standard_normal(leaf.shape) + (names[-1] == "scale"))

    params = jax.tree_util.tree_map_with_path(values, shapes)
    params["embeddings"]["table"][VOCABULARY.token_ids.eos] = 0.9 * np.random.default_rng(3).standard_normal(CONFIG.hidden_size)
    return LanguageModel(CONFIG, params, VOCABULARY, end_tokens(CONFIG, VOCABULARY.token_ids))


def generate_on_mesh(mesh):
    """Return the tokens of all texts of all prompts."""
    results = [model().generate(PROMPTS, *options, texts=texts, mesh=mesh) for *options, texts in ON_MESHES]
    return [[[text.tokens for text in texts] for texts in result] for result in results]


if __name__ == "__main__":
    print(json.dumps(generate_on_mesh(MeshShape(1, 2, 2).build())))
