"""Trained networks read from a folder: a MODEL_DIR or a Hugging Face folder.

`bertfam.api` adds functions to them; warm starts and teachers only read their parameters.
"""

from pathlib import Path
from typing import Any, NamedTuple, Self

from bertfam.config.state import preserve_gin
from bertfam.data import vocabularies
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError, warn
from bertfam.features import RowShape
from bertfam.interop import huggingface
from bertfam.interop.folders import check_is_model, huggingface_towers
from bertfam.interop.sentence_transformers import EmbeddingSettings, find_settings
from bertfam.models.encoder_decoder import EncoderOnlyConfig
from bertfam.models.network import Kind
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import selection
from bertfam.training.model_dir import TrainedModel, open_model

ENCODER: Kind = "encoder"
ENCODER_DECODER: Kind = "encoder_decoder"
_OLD_NAME = "generator"  # former name of a causal LM or an encoder-decoder


class Network(NamedTuple):
    """Network with its parameters.

    Attributes:
      config: configuration of the model.
      params: parameters of the encoder or decoder and of the heads.
      vocabulary: vocabulary of the model.
      embedding: settings by which it embeds texts.
      trained: the model of the MODEL_DIR that has the network; None for a Hugging Face folder.
    """

    config: Any
    params: dict[str, Any]
    vocabulary: Vocabulary
    embedding: EmbeddingSettings
    trained: TrainedModel | None = None

    @property
    def shifted(self) -> bool:
        """True if the masked-token head predicts a token at the position before it."""
        return self.trained is not None and getattr(self.trained.run.objective, "shifted", False)

    def encoder_only(self) -> Self:
        """Return the encoder of an encoder-decoder."""
        config = EncoderOnlyConfig(self.config)
        return self._replace(config=config, params=config.params_of(self.params))


def vocabulary_folder(path: str | Path) -> Path:
    """Return the folder of the vocabulary of a MODEL_DIR or a Hugging Face folder."""
    folder = to_path(path)
    return folder / "vocab" if (folder / "config.gin").is_file() else folder


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
        embedding, own = embedding_settings(opened), opened.run.objective.vocabulary_folders
        words = {name: vocabularies.load(own[name]) if name in own else opened.vocabulary for name in trees}
        return {name: Network(configs[name], tree, words[name], embedding, opened) for name, tree in trees.items()}
    check_is_model(folder)
    for given, what in ((step is not None, "checkpoints; leave the step out"), (average, "average; leave it out")):
        if given:
            raise UserError(f"{folder} is a Hugging Face folder and has no {what}")
    imported = huggingface.read(folder)
    vocabulary = vocabularies.load(folder)
    config = huggingface.with_vocabulary(imported.config, vocabulary, folder)
    network = Network(config, imported.params, vocabulary, find_settings(folder))
    return {config.kind: network}


def read_towers(path: str | Path, *, step: int | None = None, average: bool = False) -> dict[str, Network]:
    """Read all networks of a folder as `read_networks` does, or of one with the Hugging Face folders query/ and passage/ both."""
    if not (towers := huggingface_towers(path)):
        return read_networks(path, step=step, average=average)
    return {name: read_network(tower, step=step, average=average) for name, tower in towers.items()}


def find_step(path: str | Path, step: int | None, *, average: bool = False) -> int | None:
    """Return the step of a MODEL_DIR's checkpoint, the newest if `step` is None; a Hugging Face folder has none."""
    if not (to_path(path) / "config.gin").is_file():
        return step
    return selection.find(path, step, ("average" if average else "params",))


def embedding_settings(trained: TrainedModel) -> EmbeddingSettings:
    """Return the settings by which the model of a run embeds texts: the objective's pooling, of texts no longer than its rows.

    A model that was imported and not trained has rows as long as the model allows.
    """
    run = trained.run
    longest = run.objective.sequence_shape(RowShape(run.stages[-1].length, predictions=0)).length
    return EmbeddingSettings(run.objective.pooling, run.objective.normalize, longest if trained.step else None)


def read_network(path: str | Path, *, step: int | None = None, network: str | None = None, average: bool = False) -> Network:
    """Read one network of a folder: the one named `network`, or the first if that is None.

    The encoder of an encoder-decoder can be read alone, by the name "encoder".

    Raises:
      UserError: as `read_networks`, or if no network has that name.
    """
    networks = read_networks(path, step=step, average=average)
    first = next(iter(networks))
    if network == _OLD_NAME and first == networks[first].config.kind != ENCODER:
        warn([f"the network of {path} is named {first} now, not {network}; change the name, or leave it out"])
        return networks[first]
    if ENCODER_DECODER in networks:
        networks[ENCODER] = networks[ENCODER_DECODER].encoder_only()
    if network is not None and network not in networks:
        raise UserError(f"{path} has no network {network}; it has {', '.join(networks)}")
    return networks[network or first]
