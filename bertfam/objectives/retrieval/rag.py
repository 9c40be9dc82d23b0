"""Retrieval-augmented generation: an encoder-decoder reads the passages that a question encoder finds (Lewis et al. 2020)."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, get_args

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, question_features
from bertfam.kernels.chunked_cross_entropy import target_log_probabilities
from bertfam.layers.execution import Execution
from bertfam.layers.initializers import named_key
from bertfam.layers.pooling import PoolingMode
from bertfam.models.language_model import EncoderDecoderConfig
from bertfam.models.network import Kind
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import Batch, LossOut, NetworkSource, Objective, Predictions, Sum, Tree
from bertfam.objectives.retrieval.dual_encoder import ENCODER, PROJECTION, QUERY, DualEncoder
from bertfam.objectives.retrieval.marginals import LOG_LIKELIHOODS, Marginal, passage_log_probabilities
from bertfam.objectives.sequence_to_sequence import SequenceToSequence
from bertfam.retrieval.index import NAME, Index
from bertfam.retrieval.passages import VECTORS, gather_vectors, read_passages, retrieve, zero_passages
from bertfam.storage.untrusted import typed

INDEX = "index"  # part of `aux`
_PUBLISHED = 21_015_324  # passages of Wikipedia (section 3)
_QUERY_PROJECTION = f"{QUERY}_{PROJECTION}"


class Passages(NamedTuple):
    """Passages of the questions of a batch.

    Attributes:
      numbers: int32[batch, k], their numbers in the index, the best first.
      log_probabilities: float32[batch, k], log p(z | x).
      inputs: features of the generator's encoder, int32[batch * k, length] each.
    """

    numbers: jax.Array
    log_probabilities: jax.Array
    inputs: dict[str, jax.Array]


@dataclass(frozen=True)
class Rag(Objective):
    """L = mean over questions x of -log p(y | x), the marginal over the k passages z with the largest q(x) . d(z).

    p(z | x) is the softmax of q(x) . d(z) / t over these passages (section 2.2), and the marginal that of
    `bertfam.objectives.retrieval.marginals`. The generator reads `passage // question`, of which a passage loses its end where
    both do not fit. The vectors d of an index are constants; the question encoder learns from p(z | x) alone.

    A row has the question twice: `question_*` in the tokens of the question encoder, and `encoder_*`, with the separator before
    it, in those of the generator. Metrics are `rag_loss`, and `rag_token_loss`, the mean over targets.

    `init` makes params of the encoder-decoder, and {"query", "query_projection"} of the question encoder.

    Attributes:
      model: the generator.
      question_encoder: the encoder of questions, its vector and t; one tower.
      index: folder of the index; None, for plans alone: the 21,015,324 passages of the paper.
      index_digest: `digest` of the index; None: any index will do.
      question_vocabulary: folder of the question encoder's vocabulary; "": it is the generator's.
      marginal: "sequence" or "token".
      passages: k.
      passage_length: pieces of a passage, beyond which it is cut; a row cuts it so that the question fits.
      freeze_question_encoder: True to train the generator alone.
      chunk: largest number of targets of a row whose logits exist at once; changes no result.
      execution: how the networks are computed; never part of a checkpoint.

    Raises:
      UserError: a setting is not one of these.
    """

    terms: ClassVar[tuple[str, ...]] = ("rag",)
    network: ClassVar[Kind] = "encoder_decoder"

    model: EncoderDecoderConfig
    question_encoder: DualEncoder
    index: str | None = None
    index_digest: str | None = None
    question_vocabulary: str = ""
    marginal: Marginal = "sequence"
    passages: int = 5
    passage_length: int = 300
    freeze_question_encoder: bool = False
    chunk: int = 128
    execution: Execution = Execution()

    def __post_init__(self) -> None:
        self._generator  # noqa: B018 - which refuses other models
        if self.marginal not in get_args(Marginal):
            raise UserError(f"Rag.marginal is {self.marginal!r}: it must be one of {', '.join(map(repr, get_args(Marginal)))}")
        for name in ("passages", "passage_length"):
            if getattr(self, name) < 1:
                raise UserError(f"Rag.{name} is {getattr(self, name)}: it must be at least 1")
        if not self.question_encoder.shared:
            raise UserError("Rag trains the question encoder alone: set DualEncoder.shared = True")

    @property
    @override
    def networks(self) -> Mapping[str, Any]:
        return {self.network: self.model, QUERY: self.question_encoder.model}

    @property
    @override
    def network_sources(self) -> Mapping[str, NetworkSource]:
        where, model = self._index.folder / NAME, self._index.source.get("model") or {}
        folder, step = typed(model, "folder", str, where), typed(model, "step", int, where)
        if not folder:
            raise UserError(f"{where} names no model, which the question encoder starts from; make the index again")
        return {QUERY: NetworkSource(folder, step, bool(typed(model, "average", bool, where)))}

    @property
    @override
    def vocabulary_folders(self) -> Mapping[str, str]:
        return {QUERY: self.question_vocabulary} if self.question_vocabulary else {}

    @property
    @override
    def frozen(self) -> Frozen:
        return Frozen({QUERY: None, _QUERY_PROJECTION: None} if self.freeze_question_encoder else {})

    @property
    @override
    def pooling(self) -> PoolingMode:  # type: ignore[override]  # a constant of other objectives
        return self.question_encoder.pooling

    @property
    @override
    def normalize(self) -> bool:  # type: ignore[override]
        return self.question_encoder.normalize

    @override
    def split(self, params: Tree) -> dict[str, Tree]:
        own = (QUERY, _QUERY_PROJECTION)
        networks = {self.network: {name: part for name, part in params.items() if name not in own}}
        tower = {ENCODER: QUERY, PROJECTION: _QUERY_PROJECTION}
        return networks | {QUERY: {part: params[name] for part, name in tower.items() if name in params}}

    @override
    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        tower = networks.get(QUERY, {})
        names = {ENCODER: QUERY, PROJECTION: _QUERY_PROJECTION}
        return dict(networks.get(self.network, {})) | {names[part]: tower[part] for part in names if part in tower}

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        longest, length = self.question_encoder.model.max_length, self.question_encoder.query_length
        if longest is not None and length > longest:
            raise UserError(
                f"DualEncoder.query_length is {length}, and {type(self.question_encoder.model).__name__}.max_length is "
                f"{longest}: lower it"
            )
        return self._generator.features(shape) | question_features(length)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        length = self.question_encoder.query_length
        generator, _, _ = self._generator.init(named_key(key, self.network), shape)
        question, _, _ = self._question.init(named_key(key, QUERY), RowShape(2 * length, 0))
        passages, width = self._counts
        arrays = zero_passages(passages, width, self.passage_length, self.model.require_vocab_size)
        return self.joined({self.network: generator, QUERY: question}), {}, {INDEX: arrays}

    @override
    def read_aux(self, vocabulary: Vocabulary) -> dict[str, Any]:
        if (width := self._index.width) != self._question_width:
            raise UserError(f"{self.index} has vectors of {width} numbers, and the question encoder {self._question_width}")
        if self.index_digest not in (None, found := digest(self._index)):
            raise UserError(
                f"{self.index} is another index (digest {found}) than the run started with ({self.index_digest}): restore "
                "that one, or start a new run"
            )
        return {INDEX: read_passages(self._index, vocabulary.encode_batch, self.passage_length, vocabulary.size)}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"rag": jnp.sum(_has_target(batch))}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        keys = (None, None) if key is None else jax.random.split(key)
        networks = self.split(params)
        found = self.retrieve(networks[QUERY], aux, batch, key=keys[0], train=train)
        tokens = self.target_log_probabilities(networks[self.network], found, batch, key=keys[1], train=train)
        weights = batch["decoder_loss_weights"]
        loss = -jnp.sum(LOG_LIKELIHOODS[self.marginal](found.log_probabilities, tokens, weights) * _has_target(batch))
        metrics = {"rag_loss": Sum(loss, self.denominators(batch)["rag"]), "rag_token_loss": Sum(loss, jnp.sum(weights))}
        return LossOut({"rag": loss}, carry, jax.lax.stop_gradient(metrics))

    def retrieve(self, tower: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> Passages:
        """Find the passages of the questions of a batch, by the question encoder's parameters {"encoder", "projection"}."""
        names = ("input_tokens", "segment_ids", "token_type_ids")
        question = {f"encoder_{name}": batch[f"question_{name}"] for name in names}
        vectors = self._question.embedded(tower, question | {"starts": batch["question_start_positions"]}, key=key, train=train)
        arrays = aux[INDEX]
        found = retrieve(vectors, arrays, self._counts[0], self.passages)
        documents = gather_vectors(arrays[VECTORS], found.passages)
        # Scores whose gradient is the question encoder's.
        scores = jnp.einsum("be,bke->bk", vectors, documents, precision="highest") / self.question_encoder.temperature
        return Passages(found.passages, passage_log_probabilities(scores), self._inputs(found.tokens, found.lengths, batch))

    def target_log_probabilities(
        self, generator: Tree, passages: Passages, batch: Batch, *, key: jax.Array | None, train: bool
    ) -> jax.Array:
        """Compute log p(y_t | x, z, y_1 .. y_t-1) of every passage and target: float32[batch, k, targets]."""
        names = [name for name in batch if name.startswith("decoder_")]
        rows = {name: jnp.repeat(batch[name], self.passages, axis=0) for name in names} | passages.inputs
        hidden, _ = self._generator.decoded(generator, rows, key=key, train=train)
        head = self._generator.head(generator, hidden)
        targets, weights = rows["decoder_target_tokens"], rows["decoder_loss_weights"]
        found = target_log_probabilities(*head, targets, weights, self._generator.loss_settings)
        return found.reshape(-1, self.passages, found.shape[1])

    def _inputs(self, tokens: jax.Array, sizes: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Return rows of the passages, int32[batch, k, n] with sizes int32[batch, k], each before the question of its row."""
        question, segments = batch["encoder_input_tokens"], batch["encoder_segment_ids"]
        length, lead = question.shape[1], int(self.model.start == "eos")  # BART's rows begin with <s>
        own = jnp.sum(segments > 0, axis=1, dtype=jnp.int32)[:, None, None]
        sizes = jnp.where(own > 0, jnp.minimum(sizes[..., None], length - own), 0)
        place = jnp.arange(length, dtype=jnp.int32)
        # [batch, k, length]: the row's own tokens, moved behind those of the passage
        moved = jnp.where(place < lead, place, jnp.maximum(place - sizes, 0))
        of_row = jnp.take_along_axis(jnp.broadcast_to(question[:, None], moved.shape), moved, axis=2)
        within = jnp.broadcast_to(jnp.clip(place - lead, 0, tokens.shape[2] - 1), moved.shape)
        of_passage = jnp.take_along_axis(tokens, within, axis=2)
        is_passage = (place >= lead) & (place < lead + sizes)
        is_real = place < own + sizes
        joined = jnp.where(is_real, jnp.where(is_passage, of_passage, of_row), 0)
        rows = {"encoder_input_tokens": joined, "encoder_segment_ids": is_real.astype(jnp.int32)}
        return {name: value.reshape(-1, length) for name, value in rows.items()}

    @property
    def _index(self) -> Index:
        if self.index is None:
            raise UserError("Rag.index names no index of passages: give the folder that `bertfam index` wrote")
        return Index.open(self.index)

    @property
    def _question_width(self) -> int:
        return self.question_encoder.projection or int(self.question_encoder.model.hidden_size)

    @property
    def _counts(self) -> tuple[int, int]:
        """Number of passages, and numbers of a vector."""
        if self.index is None:
            return _PUBLISHED, self._question_width
        return self._index.passages, self._index.width

    @property
    def _generator(self) -> SequenceToSequence:
        return SequenceToSequence(self.model, chunk=self.chunk, execution=self.execution)

    @property
    def _question(self) -> DualEncoder:
        return dataclasses.replace(self.question_encoder, execution=self.execution)

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        raise UserError("samples of Rag would need its passages: set Run.sample_every = 0, and use `bertfam predict`")

    @override
    def flops(self, shape: RowShape) -> int:
        count, width = self._counts
        question = self.question_encoder.model.flops(self.question_encoder.query_length, 0)
        search = 2 * count * width  # which has no backward pass
        return int(question + search + self.passages * self.model.flops(shape.length, shape.targets))


def digest(index: Index) -> str:
    """Digest what an index was computed from: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(index.source, sort_keys=True).encode()).hexdigest()[:16]


def _has_target(batch: Batch) -> jax.Array:
    """Return 0 for padding rows and 1 for others: float32[batch]."""
    return jnp.any(batch["decoder_loss_weights"] > 0, axis=1).astype(jnp.float32)
