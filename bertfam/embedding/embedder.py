"""Embeddings of texts by an encoder: the pooled hidden states of its last layer."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from bertfam.corruption import keys
from bertfam.corruption.token_ids import TextFrame
from bertfam.data.corpora.labelled.labelled_corpus import UNKNOWN
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples, frame_size
from bertfam.data.rows.length_batches import WINDOW, computed, length_batches, row_length
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import Block, tokenise_labelled
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.interop.sentence_transformers import EmbeddingSettings
from bertfam.layers.execution import Execution
from bertfam.layers.heads.projection import project
from bertfam.layers.pooling import PoolingMode, normalized, pool
from bertfam.layers.stack import divided
from bertfam.models.encoder import EncoderConfig
from bertfam.models.network import DESCRIPTIONS
from bertfam.objectives.retrieval.dual_encoder import PROJECTION
from bertfam.training.trained_networks import ENCODER, ENCODER_DECODER, Network, read_network

_READ = ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids", "sequence_start_positions")
# Names of the prompts of queries and documents, the first that a folder has, as in sentence-transformers (6.2).
QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
_PARTS = (ENCODER, PROJECTION)  # parameters that are read, of a dual encoder both
_ROWS = "rows"  # axis of the mesh of this process's devices
_LONGEST = 512  # tokens of a text where neither the folder nor the model has a limit, as in T5


class Embeddings(NamedTuple):
    """Embeddings of texts.

    Attributes:
      vectors: float32[texts, embed].
      cut: number of texts whose ends were cut off.
    """

    vectors: np.ndarray
    cut: int


@dataclass(frozen=True)
class Embedder:
    """Encoder that embeds texts.

    Attributes:
      config: config of its family.
      params: {"encoder": ...}, and of a dual encoder {"projection": ...}, on all devices of this process.
      vocabulary: vocabulary of the model.
      settings: settings by which it embeds texts.
      prompt: text that is put before each text.
    """

    config: EncoderConfig
    params: Mapping[str, Any]
    vocabulary: Vocabulary
    settings: EmbeddingSettings
    prompt: str = ""

    @classmethod
    def create(
        cls,
        config: EncoderConfig,
        params: Mapping[str, Any],
        vocabulary: Vocabulary,
        settings: EmbeddingSettings,
        *,
        pooling: PoolingMode | None = None,
        normalize: bool | None = None,
        length: int | None = None,
    ) -> Self:
        """Create the embedder of a model, with values in place of those of its settings where they are not None.

        Raises:
          UserError: the settings cannot be used, the model has no such rows, or the vocabulary has no [CLS] to pool.
        """
        if settings.problem and pooling is None:
            raise UserError(
                f"{settings.problem}; say how hidden states are pooled by `pooling` (--pooling) to use the model alone"
            )
        changes: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "length": length}
        settings = dataclasses.replace(
            settings, problem="", **{name: value for name, value in changes.items() if value is not None}
        )
        limit = config.max_length
        if length is not None and limit is not None and length > limit:
            raise UserError(f"`length` (--length) is {length}, and the model's rows have at most {limit} tokens: lower it")
        tokens = vocabulary.token_ids
        if tokens.frame is None:
            raise UserError("the vocabulary does not say which control tokens surround a text, so texts cannot be embedded")
        if settings.pooling == "cls" and tokens.cls is None:
            raise UserError("the vocabulary has no [CLS], whose hidden state the pooling 'cls' is: choose 'mean' or 'max'")
        longest = min(settings.length or limit or _LONGEST, limit or settings.length or _LONGEST)
        if longest < frame_size(tokens.frame, is_pair=False) + 1:
            raise UserError(f"`length` (--length) is {longest}, too few for control tokens and a token of text: raise it")
        read = jax.device_put({name: tree for name, tree in params.items() if name in _PARTS}, _over_devices(None))
        embedder = cls(config, read, vocabulary, dataclasses.replace(settings, length=longest))
        return embedder.prompted(settings.default_prompt)

    def prompted(self, name: str | None) -> Self:
        """Return the embedder with the prompt of a name, or without one; raise UserError if there is no such prompt."""
        prompts = self.settings.prompts
        if name is not None and name not in prompts:
            known = f"its prompts are {', '.join(sorted(prompts))}" if prompts else "it has no prompts"
            raise UserError(f"the model has no prompt {name!r}: {known}")
        return dataclasses.replace(self, prompt="" if name is None else prompts[name])

    def prompt_name(self, *names: str) -> str | None:
        """Return the first of the names that a prompt of the folder has, or else the name of its default prompt, if any."""
        return next((name for name in names if name in self.settings.prompts), self.settings.default_prompt)

    @property
    def length(self) -> int:
        """Number of tokens, with the control tokens, beyond which texts are cut."""
        assert self.settings.length is not None
        return self.settings.length

    @property
    def width(self) -> int:
        """Numbers of an embedding."""
        projection = self.params.get(PROJECTION)
        return self.config.hidden_size if projection is None else int(projection["dense"]["kernel"].shape[-1])

    def embed(
        self,
        texts: Sequence[str],
        batch_size: int = 32,
        *,
        progress: str | None = None,
        report: Callable[[int], Any] | None = None,
    ) -> Embeddings:
        """Embed texts in float32, without dropout, in batches of texts of similar length.

        Args:
          texts: texts.
          batch_size: texts at a time.
          progress: description of a progress bar; None: there is none.
          report: called with the number of texts of each batch that is done.

        Raises:
          UserError: embeddings are not finite.
        """
        vectors, cut = np.zeros((len(texts), self.width), np.float32), 0
        frame = self.vocabulary.token_ids.frame
        assert frame is not None
        room = self.length - frame_size(frame, is_pair=False)
        begins = range(0, len(texts), WINDOW * batch_size)
        for begin in tqdm(begins, progress, disable=None if progress else True, leave=False):
            window = [self.prompt + text for text in texts[begin : begin + WINDOW * batch_size]]
            if self.settings.lowercase:
                window = [text.lower() for text in window]
            block = tokenise_labelled(self.vocabulary, [[text, UNKNOWN] for text in window])
            cut += int((block.sentences > room).sum())
            rows = self._rows(block, frame)
            for indices, pooled in computed(length_batches(rows, _READ, batch_size, self.length), self._compute):
                vectors[begin + indices] = pooled
                if report:
                    report(len(indices))
        if not np.isfinite(vectors).all():
            raise UserError("embeddings are not numbers (nan or infinite), so the model's weights are damaged or diverged")
        return Embeddings(vectors, cut)

    def _compute(self, batch: Mapping[str, np.ndarray]) -> jax.Array:
        # All devices of this process share a batch that divides among them.
        is_divisible = len(batch["encoder_input_tokens"]) % jax.local_device_count() == 0
        batch = jax.device_put(dict(batch), _over_devices(_ROWS if is_divisible else None))
        # "float32" alone would mean TF32 on GPUs and bfloat16 passes on TPUs.
        with jax.default_matmul_precision("highest"):
            return _pooled(self.params, batch, self.config, self.settings.pooling, self.settings.normalize)

    def _rows(self, block: Block, frame: TextFrame) -> dict[str, np.ndarray]:
        """Make the rows of tokenised texts, no longer than the longest of them requires."""
        longest = int(block.sentences.max(initial=0)) + frame_size(frame, is_pair=False)
        ends, bounds = np.cumsum(block.sentences), np.arange(len(block.sentences) + 1)
        labels = block.labels
        assert labels is not None
        documents = Documents("the input", block.tokens, np.concatenate([[0], ends]), bounds, labels=labels, label_count=1)
        examples = LabelledExamples(documents, labels, row_length(longest, self.length), self.vocabulary.token_ids, frame)
        return examples.rows(bounds[:-1], keys.fold(0, bounds[:-1]))


def _over_devices(axis: str | None) -> NamedSharding:
    """Return the sharding of arrays whose first axis is split over the devices of this process, or that they all hold."""
    spec = PartitionSpec() if axis is None else PartitionSpec(axis)  # scalars have no axis
    return NamedSharding(Mesh(np.array(jax.local_devices()), (_ROWS,)), spec)


@functools.partial(jax.jit, static_argnames=("config", "pooling", "normalize"))
def _pooled(params: Any, rows: Any, config: Any, pooling: PoolingMode, normalize: bool) -> jax.Array:
    """Embed rows of one text each: float32[batch, embed]."""
    segment_ids = rows["encoder_segment_ids"]
    hidden, _ = config.encoder(Execution()).apply(
        {"params": params["encoder"]},
        rows["encoder_input_tokens"],
        segment_ids=segment_ids,
        token_type_ids=rows["encoder_token_type_ids"],
        train=False,
    )
    vectors = pool(hidden, segment_ids, rows["sequence_start_positions"], pooling)
    if PROJECTION in params:
        vectors = project(params[PROJECTION], vectors)
    return normalized(vectors) if normalize else vectors


def open_embedder(
    path: str | Path, *, step: int | None = None, network: str | None = None, average: bool = False, **settings: Any
) -> Embedder:
    """Open the encoder of a MODEL_DIR or a Hugging Face folder.

    Args:
      path: the folder.
      step: step of a MODEL_DIR's checkpoint; None: the newest.
      network: name of the network where a folder has several; None: the first.
      average: use the moving average of a MODEL_DIR's parameters.
      **settings: see `Embedder.create`.

    Raises:
      UserError: the folder has no such encoder, or as `Embedder.create`.
    """
    return create_embedder(path, read_network(path, step=step, network=network, average=average), **settings)


def create_embedder(path: str | Path, network: Network, **settings: Any) -> Embedder:
    """Create the embedder of a network of a folder; arguments and errors are those of `open_embedder`."""
    kind = network.config.kind
    if kind != ENCODER:
        fix = "its encoder alone is --network=encoder" if kind == ENCODER_DECODER else "name the folder of an encoder"
        raise UserError(f"{path} holds {DESCRIPTIONS[kind]}, and embeddings of texts are an encoder's: {fix}")
    return Embedder.create(network.config, divided(network.params), network.vocabulary, network.embedding, **settings)
