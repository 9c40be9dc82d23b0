"""Mapping of parameters to the tensors of Hugging Face's files: the parts of each family's table."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import flax.linen as nn
import jax
import numpy as np
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.layers.activations import Activation
from bertfam.models.encoder import init_encoder_parts
from bertfam.models.language_model import init_language_model_parts

# Parts of the classifiers of fine-tuned models, of texts, words, spans and choices. Their outputs are those of a task, so that
# they are read for predictions alone.
CLASSIFIER, TOKEN_CLASSIFIER, SPAN_CLASSIFIER = "classifier", "token_classifier", "span_classifier"
CHOICE_CLASSIFIER = "choice_classifier"
CLASSIFIERS = frozenset({CLASSIFIER, TOKEN_CLASSIFIER, SPAN_CLASSIFIER, CHOICE_CLASSIFIER})

Layout = Literal[
    "vector", "row", "matrix", "leading_axis", "output_first", "linear", "linear_from_heads", "conv1d", "conv1d_from_heads"
]

# The activations of config.json by transformers' names, and back.
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
WRITTEN_ACTIVATIONS: dict[Activation, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


@dataclass(frozen=True)
class Entry:
    """Mapping of one of our parameters to its tensor, or to one tensor a layer.

    Attributes:
      ours: path in the tree, such as "encoder/layers/attention/query/kernel"; the first part is the network or head.
      theirs: the tensor's name; "{layer}" stands for the number of the layer. Ours has the layers as its first axis, or 1 where
        all share it, which files that have a tensor for each layer then repeat.
      layout: "vector": flattened; "row": flattened, with an axis of 1 before it; "matrix": as it is;
        "leading_axis": the same with an axis of 1 before it; "output_first": our last axis before the others; "linear": torch's
        (out, in), transposed, where in is the first axis of ours; "conv1d": (in, out), not transposed; "..._from_heads": the same
        where in is the first two axes (heads, head_dim).
      vocabulary: whether our first axis is padded beyond the rows that files hold.
      part_of: (place, parts), where theirs holds several of ours of one shape, one after the other along `part_axis`.
      first_layer: the index of theirs that our first layer has.
      layers: how many layers it has; None: all of the model.
      shared: whether it is the one of all layers in files too: our first axis, of 1, is not in theirs.
      optional: whether files may lack it, which then means zeros.
    """

    ours: str
    theirs: str
    layout: Layout
    vocabulary: bool = False
    part_of: tuple[int, int] = (0, 1)
    first_layer: int = 0
    layers: int | None = None
    shared: bool = False
    optional: bool = False

    @property
    def part(self) -> str:
        """Name of the network or head that it belongs to."""
        return self.ours.partition("/")[0]

    @property
    def stacked(self) -> bool:
        """True if our first axis counts layers."""
        return self.shared or "{layer}" in self.theirs

    @property
    def part_axis(self) -> int:
        """Axis of their tensor along which its parts lie: the output axis."""
        return 1 if self.layout.startswith("conv1d") else 0

    def names(self, num_layers: int) -> list[str]:
        """Return the names of their tensors, one for each of our layers, in a model of `num_layers`."""
        if "{layer}" not in self.theirs:
            return [self.theirs]
        count = num_layers if self.layers is None else self.layers
        return [self.theirs.format(layer=self.first_layer + layer) for layer in range(count)]

    def to_theirs(self, array: np.ndarray, table_rows: int) -> np.ndarray:
        """Convert our array (of one layer) to their layout, with `table_rows` rows of the vocabulary."""
        if self.vocabulary:
            array = array[:table_rows]
        if self.layout in ("vector", "row"):
            return array.reshape(-1) if self.layout == "vector" else array.reshape(1, -1)
        if self.layout == "matrix":
            return array
        if self.layout == "leading_axis":
            return array[None]
        if self.layout == "output_first":
            return np.moveaxis(array, -1, 0)
        inputs = array.shape[:2] if self.layout.endswith("from_heads") else array.shape[:1]
        # [*in, *out] -> [in, out], transposed or not
        array = array.reshape(int(np.prod(inputs)), -1)
        return array.T if self.layout.startswith("linear") else array

    def to_ours(self, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Convert our part of their tensor to our array (of one layer) of the given shape; vocabulary padding is zero."""
        if self.layout.startswith("linear"):
            tensor = tensor.T
        if self.layout in ("row", "leading_axis"):
            tensor = tensor[0]
        if self.layout == "output_first":
            tensor = np.moveaxis(tensor, 0, -1)
        if self.vocabulary:
            tensor = np.pad(tensor, [(0, shape[0] - tensor.shape[0])] + [(0, 0)] * (tensor.ndim - 1))
        return tensor.reshape(shape)


def dense(ours: str, theirs: str, layout: Layout = "linear") -> tuple[Entry, Entry]:
    """Return the entries of a kernel and a bias."""
    return Entry(f"{ours}/kernel", f"{theirs}.weight", layout), Entry(f"{ours}/bias", f"{theirs}.bias", "vector")


def norm(ours: str, theirs: str) -> tuple[Entry, Entry]:
    """Return the entries of a scale and a bias."""
    return Entry(f"{ours}/scale", f"{theirs}.weight", "vector"), Entry(f"{ours}/bias", f"{theirs}.bias", "vector")


def check_types(content: Mapping[str, Any], names: Collection[str], types: tuple[type, ...], required: bool = False) -> None:
    """Raise UserError where config.json's content has one of these names with another type, or lacks a `required` one."""
    wrong = [name for name in names if (required or content.get(name) is not None) and type(content.get(name)) not in types]
    if wrong:
        known = " or ".join(kind.__name__ for kind in types)
        raise UserError(f"config.json: {', '.join(wrong)} must be {'stated, as ' if required else 'of type '}{known}")


def read_activation(content: Mapping[str, Any], name: str, default: str) -> Activation:
    """Return our activation for the one that config.json's content states under this name.

    Raises:
      UserError: for an activation that we do not have.
    """
    activation = content.get(name, default)
    if activation not in list(_ACTIVATIONS):
        raise UserError(f"config.json: {name} = {activation!r} is not supported, only {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[activation]


def check_is(config: Any, theirs: Any, *names: str) -> None:
    """Raise UserError where one of these fields differs from the only value that transformers' class supports."""
    for name in names:
        if getattr(config, name) != getattr(theirs, name):
            raise UserError(
                f"{type(config).__name__}.{name} = {getattr(config, name)!r} has no place in transformers' class, which has "
                f"{getattr(theirs, name)!r}: a model like it cannot be written"
            )


def stated(config: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of our fields by their names, without those that are None."""
    return {theirs: value for theirs, ours in names.items() if (value := getattr(config, ours)) is not None}


class PaddedVocabulary(Protocol):
    """Part of a vocabulary that positions depend on, where transformers counts them from a padding id."""

    @property
    def token_ids(self) -> Any:
        """Ids of the special tokens, a `bertfam.corruption.token_ids.TokenIds`."""
        ...

    def occurs(self, id: int) -> bool:
        """Return whether rows of text hold an id besides their padding."""
        ...


# TensorFlow's names of a norm's parameters, which old files have.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class Wrapper(NamedTuple):
    """Class of transformers of another model_type around the encoder of a family.

    Attributes:
      model_type: as in config.json.
      architecture: name of the class.
      prefix: of the names of the encoder's tensors.
    """

    model_type: str
    architecture: str
    prefix: str


@dataclass(frozen=True)
class Family:
    """Hugging Face table of a family, read by `bertfam.interop.huggingface`.

    Attributes:
      model_type: as in config.json.
      config: our class of its configs.
      objective: gin file of the objective that an imported model is trained on with, its model bound to `config`.
      prefix: of the encoder's names wherever a head is present.
      architectures: the class for each set of parts; a file that holds two sets of the same size is read as the first.
      config_from_huggingface: config.json's content -> our config; raises UserError for an unsupported model.
      config_to_huggingface: our config -> config.json's content, without the architecture.
      entries: our config -> all entries of all parts.
      tied: their head's table -> the word table, for heads that share it unless both are present and differ.
      buffers: endings of tensors that are no parameters.
      heads: config -> the heads on hidden states by part, all but "mlm_head" and "lm_head".
      aliases: tensors that a tied head has under two names: the one that is used where they differ -> the one written.
      old_names: endings of tensor names in old files -> today's.
      fit_vocabulary: (config, tokenizer) -> the config of a model read from a folder with this tokenizer.
      padding_id: (config, vocabulary) -> config.json's pad_token_id; raises UserError where no id gives the model's positions.
      objectives_by_part: part -> gin file of the objective of models that have this part, in the place of `objective`.
      classifier_prefix: of all names but a classifier's in the class with a classifier of texts, where other classes have none.
      unread: head -> part that its class also has and does not read, which is written as zeros.
      wrappers: classes of other model_types around the encoder.
    """

    model_type: str
    config: type
    objective: str
    prefix: str
    architectures: Mapping[frozenset[str], str]
    config_from_huggingface: Callable[[Mapping[str, Any]], Any]
    config_to_huggingface: Callable[[Any], dict[str, Any]]
    entries: Callable[[Any], tuple[Entry, ...]]
    tied: tuple[str, str]
    buffers: tuple[str, ...]
    heads: Callable[[Any], Mapping[str, nn.Module]] = lambda config: {}
    aliases: Mapping[str, str] = field(default_factory=dict)
    old_names: Mapping[str, str] = field(default_factory=lambda: _OLD_NAMES)
    fit_vocabulary: Callable[[Any, PaddedVocabulary], Any] = lambda config, vocabulary: config
    padding_id: Callable[[Any, PaddedVocabulary], int] = lambda config, vocabulary: vocabulary.token_ids.pad
    objectives_by_part: Mapping[str, str] = field(default_factory=dict)
    classifier_prefix: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()

    @property
    def always_prefixed(self) -> bool:
        """True if names have the prefix even without a head."""
        return False

    def needed(self, entries: Iterable[Entry]) -> frozenset[str]:
        """Return the parts of `entries` that every model of the family has."""
        return min(self.architectures, key=len)

    def init(self, config: Any, key: jax.Array, parts: frozenset[str]) -> Any:
        """Initialize the parameters of the parts of a model, boxed with logical axis names."""
        return init_encoder_parts(config, key, parts, self.heads(config))

    def objective_of(self, parts: Collection[str]) -> str:
        """Return the gin file of the objective that a model with these parts is trained on."""
        return next((path for part, path in self.objectives_by_part.items() if part in parts), self.objective)


@dataclass(frozen=True)
class LanguageModelFamily(Family):
    """A family of causal LMs or encoder-decoders: parts "embeddings", "decoder", "lm_head" and, if any, "encoder"."""

    @property
    @override
    def always_prefixed(self) -> bool:
        return True  # a tied head is always there, and has no tensors

    @override
    def needed(self, entries: Iterable[Entry]) -> frozenset[str]:
        return super().needed(entries) | {entry.part for entry in entries}

    @override
    def init(self, config: Any, key: jax.Array, parts: frozenset[str]) -> Any:
        return init_language_model_parts(config, key, parts)


def language_model_architectures(
    name: str, stacks: tuple[str, ...] = ("decoder",), *, classifier: str | None = None
) -> dict[frozenset[str], str]:
    """Return the parts of a `LanguageModelFamily` with this class, with a tied and with an untied head, and its classifier."""
    body = frozenset({"embeddings", *stacks})
    return {body: name, body | {"lm_head"}: name} | ({body | {CLASSIFIER}: classifier} if classifier else {})
