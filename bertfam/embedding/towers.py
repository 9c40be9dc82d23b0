"""Encoders of queries and of passages in the folder of a model: two networks, or one for both."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from bertfam.embedding.embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS, Embedder, create_embedder
from bertfam.errors import UserError
from bertfam.layers.pooling import PoolingMode
from bertfam.objectives.retrieval.dual_encoder import PASSAGE, QUERY
from bertfam.objectives.retrieval.realm import RETRIEVER
from bertfam.storage.paths import to_path
from bertfam.storage.untrusted import typed
from bertfam.training.trained_networks import Network, find_step, read_towers

_PROMPTS = {QUERY: QUERY_PROMPTS, PASSAGE: DOCUMENT_PROMPTS}


class TowerSettings(NamedTuple):
    """Settings by which a model embeds queries and passages; None stands for what the folder of the model says.

    Attributes:
      pooling: pooling of the hidden states.
      normalize: True if vectors have length 1.
      length: tokens, with the control tokens, beyond which texts are cut.
    """

    pooling: PoolingMode | None = None
    normalize: bool | None = None
    length: int | None = None


class Towers(NamedTuple):
    """Model that embeds queries and passages.

    Attributes:
      query: the encoder of queries, with their prompt.
      passage: the encoder of passages, with their prompt.
      source: what determines its vectors, as JSON, from which `reopen_towers` opens it again.
    """

    query: Embedder
    passage: Embedder
    source: dict[str, Any]


def open_towers(folder: str | Path, settings: TowerSettings, *, step: int | None = None, average: bool = False) -> Towers:
    """Open the encoders of a folder: the networks "query" and "passage", "retriever" for both, or else the first for both.

    Args:
      folder: a MODEL_DIR, a Hugging Face folder, or a folder with the Hugging Face folders query/ and passage/.
      settings: settings in the place of the folder's.
      step: step of a MODEL_DIR's checkpoint; None: the newest.
      average: use the moving average of a MODEL_DIR's parameters.

    Raises:
      UserError: if the folder has no encoder, or as `Embedder.create`.
    """
    step = find_step(folder, step, average=average)
    networks = read_towers(folder, step=step, average=average)
    query, passage = (_tower(folder, networks, name, settings) for name in (QUERY, PASSAGE))
    source = {"folder": str(to_path(folder).absolute()), "step": step, "average": average, "digest": _digest(networks)}
    return Towers(query, passage, source | settings._asdict())


def reopen_towers(source: Mapping[str, Any], where: Path, folder: str | None = None) -> Towers:
    """Open the model of an index again.

    Args:
      source: `Towers.source` of the model.
      where: the file that holds it, for messages.
      folder: where the model lies now; None: where it lay.

    Raises:
      UserError: if the model is not there, or is another one by now.
    """
    kinds: Mapping[str, type] = {"folder": str, "step": int, "average": bool, "digest": str}
    given: dict[str, Any] = {name: typed(source, name, kind, where) for name, kind in kinds.items()}
    own: dict[str, Any] = {
        name: typed(source, name, kind, where) for name, kind in (("pooling", str), ("normalize", bool), ("length", int))
    }
    folder = folder or given["folder"]
    if not folder:
        raise UserError(f"{where} names no model; give its folder by --model_dir")
    found = open_towers(folder, TowerSettings(**own), step=given["step"], average=bool(given["average"]))
    if found.source["digest"] != given["digest"]:
        raise UserError(
            f"{folder} holds another model than the one that the index of {where.parent} was made with; name the folder of that "
            "one by --model_dir, or make the index again"
        )
    return found


def _tower(folder: str | Path, networks: Mapping[str, Network], name: str, settings: TowerSettings) -> Embedder:
    """Return the encoder of queries or of passages, with the prompt of the folder."""
    network = networks.get(name) or networks.get(RETRIEVER) or next(iter(networks.values()))
    embedder = create_embedder(folder, network, **settings._asdict())
    return embedder.prompted(embedder.prompt_name(*_PROMPTS[name]))


def _digest(networks: Mapping[str, Network]) -> str:
    """Digest the parameters of networks: 16 hexadecimal digits."""
    result = hashlib.sha256()
    for name, network in sorted(networks.items()):
        for path, value in sorted(traverse_util.flatten_dict(network.params, sep="/").items()):
            array = np.ascontiguousarray(value)
            result.update(f"{name}/{path} {array.dtype}{array.shape}".encode())
            result.update(array.view(np.uint8).data)
    return result.hexdigest()[:16]
