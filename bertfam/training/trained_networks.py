"""Trained networks read from a folder: a MODEL_DIR or a Hugging Face folder.

`bertfam.api` adds functions to them; warm starts and teachers only read their parameters.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from bertfam.config.state import preserve_gin
from bertfam.data import vocabularies
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError, warn
from bertfam.interop import huggingface
from bertfam.storage.paths import to_path
from bertfam.training.model_dir import open_model

# Names of the only network of a Hugging Face folder: those that the objectives of encoders, causal LMs and encoder-decoders use.
ENCODER, DECODER, ENCODER_DECODER = "encoder", "decoder", "encoder_decoder"
_OLD_NAME = "generator"  # former name of the last two


class Network(NamedTuple):
    """Network with its parameters.

    Attributes:
      config: configuration of the model.
      params: parameters of the encoder or decoder and of the heads.
      vocabulary: vocabulary of the model.
    """

    config: Any
    params: dict[str, Any]
    vocabulary: Vocabulary

    @property
    def has_decoder(self) -> bool:
        """True for a causal LM or an encoder-decoder."""
        return "decoder" in self.params

    @property
    def name(self) -> str:
        """Name of the only network of a Hugging Face folder."""
        if not self.has_decoder:
            return ENCODER
        return ENCODER_DECODER if "encoder" in self.params else DECODER


def read_networks(path: str | Path, *, step: int | None = None, average: bool = False) -> dict[str, Network]:
    """Read all networks of a folder, by name; a Hugging Face folder has one.

    The gin bindings of the calling program are kept.

    Args:
      path: the folder.
      step: step of the checkpoint of a MODEL_DIR; None: the newest.
      average: whether to read the moving average of a MODEL_DIR's parameters instead of the parameters.

    Raises:
      UserError: if the folder is neither a MODEL_DIR nor a Hugging Face folder, or is incomplete.
    """
    folder = to_path(path)
    if (folder / "config.gin").is_file():
        with preserve_gin():
            opened = open_model(folder, step, average=average)
        configs = opened.run.objective.networks
        trees = opened.run.objective.split(opened.params)
        return {name: Network(configs[name], tree, opened.vocabulary) for name, tree in trees.items()}
    if (folder / "config.json").is_file():
        for given, what in ((step is not None, "checkpoints; leave the step out"), (average, "average; leave it out")):
            if given:
                raise UserError(f"{folder} is a Hugging Face folder and has no {what}")
        imported = huggingface.read(folder)
        vocabulary = vocabularies.load(folder)
        config = huggingface.with_vocabulary(imported.config, vocabulary.size, folder)
        network = Network(config, imported.params, vocabulary)
        return {network.name: network}
    raise UserError(f"{folder} is neither a model folder (config.gin) nor a Hugging Face folder (config.json)")


def read_network(path: str | Path, *, step: int | None = None, network: str | None = None) -> Network:
    """Read one network of a folder: the one named `network`, or the first if that is None.

    Raises:
      UserError: as `read_networks`, or if no network has that name.
    """
    networks = read_networks(path, step=step)
    return networks[select_network(path, networks, network)]


def select_network(path: str | Path, networks: Collection[str], name: str | None) -> str:
    """Return the name of one of a folder's networks; None selects the first.

    Raises:
      UserError: no network has that name.
    """
    first = next(iter(networks))
    if name == _OLD_NAME and first in (DECODER, ENCODER_DECODER):
        warn([f"the network of {path} is named {first} now, not {name}; change the name, or leave it out"])
        return first
    if name is not None and name not in networks:
        raise UserError(f"{path} has no network {name}; it has {', '.join(networks)}")
    return name or first
