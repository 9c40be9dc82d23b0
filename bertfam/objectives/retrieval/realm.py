"""REALM: a masked language model that retrieves passages, and learns to (Guu, Lee, Tung, Pasupat, Chang 2020)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape
from bertfam.layers.execution import Execution
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions, put_positions
from bertfam.layers.pooling import PoolingMode
from bertfam.models.encoder import MaskedLmConfig
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import Batch, LossOut, NetworkSource, Sum, Tree
from bertfam.objectives.retrieval.dual_encoder import ENCODER, PROJECTION, DualEncoder
from bertfam.retrieval.index import NAME, Index
from bertfam.retrieval.passages import TOKENS, VECTORS, gather_tokens, read_passages, search, zero_passages
from bertfam.retrieval.refresh import current_vectors, refresh, start_refresh
from bertfam.sharding.pieces import interleaved
from bertfam.storage.untrusted import typed

RETRIEVER = "retriever"
_PROJECTION, _PASSAGES, _REFRESH = "retriever_projection", "passages", "refresh"
_MULTIPLE = 8  # of the lengths of texts, so that their positions can be sharded


class Candidates(NamedTuple):
    """Candidates of each query, the null document first.

    Attributes:
      tokens: int32[batch, candidates, passage length], without control tokens; the null document has none.
      lengths: int32[batch, candidates], numbers of these tokens.
      is_used: bool[batch, candidates], False where there are fewer candidates.
    """

    tokens: jax.Array
    lengths: jax.Array
    is_used: jax.Array


@dataclass(frozen=True)
class Realm(Mlm):
    """L = mean over masked positions k of -log sum over candidates z of p(z | x) p(y_k | z, x).

    x is a text with a masked span y, and z a passage of an index. p(z | x) is the softmax of E(x) . E(z) over the candidates,
    with E the retriever's pooled output, projected (section 3.2). p(y_k | z, x) is that of the masked-token head over the
    reader's row `[CLS] x [SEP] z [SEP]`. The gradient trains the retriever as well as the reader. As in the published code,
    each masked position has a sum of its own; the paper has the product of a span's positions within one sum (equations 1 and
    2), which gives more weight to passages that explain the whole span.

    Candidates are the null document, whose row is `[CLS] x [SEP]`, and the passages whose vectors in the index have the largest
    inner products with E(x). The vectors are those of earlier parameters and only select; scores are computed anew. Passages
    with `overlap` consecutive tokens of x and y together are left out: text that is the query's own would give y away (section
    3.3). `spare` further passages take their places, as far as they go.

    The index is computed again all the time: in a period of `refresh` updates, each update embeds a share of the passages by
    the parameters of the period's first update (see `bertfam.retrieval.refresh`). The control tokens are those of a row, its
    first and its last.

    `init` makes params {"encoder", "mlm_head", "retriever", "retriever_projection"}, aux {"passages": {"vectors", "tokens"}},
    and the carry {"refresh"}, which is empty without `refresh`. Metrics are `mlm_loss`; `mlm_accuracy`, that of the sum over
    the candidates; `retrieval_utility`, the mean of log sum_z p(z | x) p(y_k | z, x) - log p(y_k | null document, x), above 0
    where retrieval helps (section 5.2); and `null_probability`, the mean of p(null document | x).

    `Run.microbatches` divides the reading: candidates are found for the whole batch, and the reader and the retriever compute
    it in pieces, again in the backward pass.

    Attributes:
      model: the encoder of the reader and that of the retriever.
      execution: how they are computed; never part of a checkpoint.
      index: folder of `bertfam index`. A new run's retriever starts from the model that it names.
      passages: number of passages of a run without an index, for plans.
      candidates: candidates of a query, with the null document.
      passage_length: pieces of a passage, beyond which it is cut.
      overlap: consecutive tokens that only a query's own passages share with it.
      spare: passages that are found beyond the candidates.
      refresh: updates of a period; None: the index stays as it is.
      approximate: find approximately (`jax.lax.approx_max_k`), which is faster on TPUs.
      projection: numbers of a vector; None: those of the encoder's output.
      pooling: pooling of the retriever's output.
      normalize: True if vectors have length 1.
      pieces: pieces in which a batch is computed; `Run.microbatches` sets it.

    Raises:
      UserError: a number is out of its range.
    """

    model: MaskedLmConfig
    execution: Execution = Execution()
    index: str | None = None
    passages: int | None = None
    candidates: int = 8
    passage_length: int = 286
    overlap: int = 12
    spare: int = 4
    refresh: int | None = 500
    approximate: bool = False
    projection: int | None = 128
    pooling: PoolingMode = "cls"  # type: ignore[misc]  # a constant of other objectives
    normalize: bool = False  # type: ignore[misc]
    pieces: int = 1

    initialized_networks: ClassVar[tuple[str, ...]] = ("encoder", RETRIEVER)

    def __post_init__(self) -> None:
        least = {"passages": 1, "candidates": 2, "passage_length": 1, "overlap": 1, "spare": 0, "refresh": 1, "pieces": 1}
        for name, limit in least.items():
            if (number := getattr(self, name)) is not None and number < limit:
                raise UserError(f"Realm.{name} is {number}: it must be at least {limit}")
        self._retriever  # noqa: B018  # checks its own settings

    @property
    @override
    def networks(self) -> Mapping[str, Any]:
        return {"encoder": self.model, RETRIEVER: self.model}

    @property
    @override
    def network_sources(self) -> Mapping[str, NetworkSource]:
        if self.index is None:
            return {}
        index = Index.open(self.index)
        where, model = index.folder / NAME, index.source.get("model") or {}
        folder, step = typed(model, "folder", str, where), typed(model, "step", int, where)
        return {RETRIEVER: NetworkSource(folder, step, bool(typed(model, "average", bool, where)))} if folder else {}

    @override
    def split(self, params: Tree) -> dict[str, Tree]:
        reader = {name: part for name, part in params.items() if name not in (RETRIEVER, _PROJECTION)}
        names = {ENCODER: RETRIEVER, PROJECTION: _PROJECTION}
        tower = {name: params[own] for name, own in names.items() if own in params}
        return {name: network for name, network in (("encoder", reader), (RETRIEVER, tower)) if network}

    @override
    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        params = dict(networks.get("encoder", {}))
        if tower := networks.get(RETRIEVER):
            names = {ENCODER: RETRIEVER, PROJECTION: _PROJECTION}
            params |= {own: tower[name] for name, own in names.items() if name in tower}
        return params

    @override
    def in_pieces(self, count: int) -> Self:
        return dataclasses.replace(self, pieces=count)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        if shape.examples > 1:
            raise UserError(
                "rows are packed, and Realm reads a row with each of its passages: set TextData.rows = @DocSentences()"
            )
        longest = shape.length + self.passage_length + 1
        if longest > self.model.max_length:
            raise UserError(
                f"Stage.length {shape.length} and Realm.passage_length {self.passage_length} make rows of {longest} tokens, and "
                f"{type(self.model).__name__}.max_length is {self.model.max_length}; shorten one of them"
            )
        return super().features(shape)

    @override
    def sequence_shape(self, shape: RowShape) -> RowShape:
        return shape._replace(length=self._read_length(shape.length))

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        params, _, _ = super().init(key, self.sequence_shape(shape))
        tower, _, _ = self._retriever.init(named_key(key, RETRIEVER), self.sequence_shape(shape))
        params |= self.joined({RETRIEVER: tower})
        passages = zero_passages(self._count, self._width, self.passage_length, self.model.require_vocab_size)
        carry = {} if self.refresh is None else {_REFRESH: start_refresh(passages[VECTORS], tower)}
        return params, carry, {_PASSAGES: passages}

    @override
    def read_aux(self, vocabulary: Vocabulary) -> dict[str, Any]:
        if self.index is None:
            raise UserError("no index of passages is named: --gin.INDEX='\"DIR\"', made by `bertfam index`")
        index = Index.open(self.index)
        if index.width != self._width:
            raise UserError(
                f"{self.index} has vectors of {index.width} numbers, and those of Realm have {self._width}: make it with the "
                "model that the retriever starts from, or change Realm.projection"
            )
        return {_PASSAGES: read_passages(index, vocabulary.encode_batch, self.passage_length, self.model.require_vocab_size)}

    @override
    def evaluated_aux(self, carry: Tree, aux: Tree) -> Tree:
        if not carry:
            return aux
        passages = aux[_PASSAGES]
        return aux | {_PASSAGES: passages | {VECTORS: current_vectors(carry[_REFRESH], passages[VECTORS])}}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        passages = aux[_PASSAGES]
        vectors = passages[VECTORS]
        if carry:
            embed = partial(self.embed_passages, tokens=passages[TOKENS], batch=batch)
            tower = self.split(params)[RETRIEVER]
            assert self.refresh is not None
            vectors, own = refresh(carry[_REFRESH], vectors, tower, self._count, self.refresh, embed)
            carry = carry | {_REFRESH: own}
        candidates = self.find(params, vectors, passages[TOKENS], batch)

        def piece(item: tuple[jax.Array, tuple[Batch, Candidates]]) -> dict[str, Sum]:
            number, (rows, own) = item
            own_key = key if key is None or self.pieces == 1 else jax.random.fold_in(key, number)
            return self.read(params, rows, own, key=own_key, train=train)

        if self.pieces == 1:
            sums = piece((jnp.zeros((), jnp.int32), (batch, candidates)))
        else:
            items = jnp.arange(self.pieces), interleaved((dict(batch), candidates), self.pieces)
            sums = jax.tree.map(lambda value: jnp.sum(value, axis=0), jax.lax.map(jax.checkpoint(piece), items))
        return LossOut({"mlm": sums["mlm_loss"].total}, carry, jax.lax.stop_gradient(sums))

    def find(self, params: Tree, vectors: jax.Array, tokens: jax.Array, batch: Batch) -> Candidates:
        """Find the candidates of the queries of a batch, without gradient.

        Args:
          params: the parameters, which embed the queries.
          vectors: float32[rows, width] of the passages.
          tokens: [rows, passage length] of the passages.
          batch: the global batch.
        """
        count = min(self.candidates - 1, self._count)
        queries = jax.lax.stop_gradient(self._embed(self.split(params)[RETRIEVER], _query(batch), key=None, train=False))
        found = search(queries, vectors, self._count, min(count + self.spare, self._count), approximate=self.approximate)
        pieces, lengths = gather_tokens(tokens, found.passages)
        is_own = self._is_own(batch, pieces, lengths)
        order = jnp.argsort(is_own, axis=1, stable=True)[:, :count]
        pieces = jnp.take_along_axis(pieces, order[..., None], axis=1)
        lengths, is_own = (jnp.take_along_axis(value, order, axis=1) for value in (lengths, is_own))
        null = ((0, 0), (1, 0))
        used = jnp.pad(~is_own, null, constant_values=True)
        return Candidates(jnp.pad(pieces, (*null, (0, 0))), jnp.pad(lengths, null), used)

    def read(self, params: Tree, batch: Batch, candidates: Candidates, *, key: jax.Array | None, train: bool) -> dict[str, Sum]:
        """Compute the metrics of a batch with its candidates; that of the loss has its gradient."""
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        rows, count = candidates.lengths.shape
        tower = self.split(params)[RETRIEVER]
        queries = self._embed(tower, _query(batch), key=keys[0], train=train)
        tokens, lengths = candidates.tokens.reshape(rows * count, -1), candidates.lengths.reshape(rows * count)
        texts = self._texts(batch, tokens, lengths, count)
        vectors = self._embed(tower, texts, key=keys[1], train=train).reshape(rows, count, -1)
        scores = jnp.einsum("be,bce->bc", queries, vectors, precision="highest")
        # [batch, candidates, 1, 1]
        log_shares = jax.nn.log_softmax(jnp.where(candidates.is_used, scores, -jnp.inf))[..., None, None]
        hidden = self.encoded(params, self._pairs(batch, candidates), key=keys[2], train=train)
        places = jnp.repeat(batch["masked_positions"], count, axis=0)
        # [batch, candidates, predictions, vocabulary]
        logits = self.logits(params, gather_positions(hidden, places))
        log_words = jax.nn.log_softmax(logits.reshape(rows, count, *logits.shape[1:]))
        targets, weights = batch["masked_target_tokens"], batch["masked_loss_weights"]
        marginal = jax.nn.logsumexp(log_shares + log_words, axis=1)
        target = jnp.arange(marginal.shape[-1], dtype=targets.dtype) == targets[..., None]
        total, alone = (jnp.sum(jnp.where(target, words, 0.0), axis=-1) for words in (marginal, log_words[:, 0]))
        # 0 times a loss that is not finite would not be 0.
        used = weights > 0
        loss = -jnp.sum(jnp.where(used, total, 0.0) * weights)
        correct = jnp.sum((jnp.argmax(marginal, axis=-1) == targets) * weights)
        utility = jnp.sum(jnp.where(used, total - alone, 0.0) * weights)
        has_target = jnp.any(used, axis=1)
        null = Sum(jnp.sum(jnp.where(has_target, jnp.exp(log_shares[:, 0, 0, 0]), 0.0)), jnp.sum(has_target, dtype=jnp.float32))
        sums = {name: Sum(value, jnp.sum(weights)) for name, value in (("mlm_loss", loss), ("mlm_accuracy", correct))}
        return sums | {"retrieval_utility": Sum(utility, jnp.sum(weights)), "null_probability": null}

    def _is_own(self, batch: Batch, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        """Return True for passages with `overlap` consecutive tokens of the row's text, or all of a short one: bool[batch, n]."""
        used = batch["masked_loss_weights"] > 0
        text = put_positions(batch["encoder_input_tokens"], batch["masked_positions"], batch["masked_target_tokens"], used)
        text, count = text[:, 1:], jnp.maximum(_sizes(batch) - 2, 0)  # without control tokens
        size = jnp.minimum(count, self.overlap)
        own, theirs = _windows(text, size, self.overlap), _windows(tokens, size[:, None], self.overlap)
        is_window = jnp.arange(own.shape[1]) + size[:, None] <= count[:, None]
        is_theirs = jnp.arange(theirs.shape[2]) + size[:, None, None] <= lengths[..., None]
        equal = own[:, None, None] == theirs[..., None]
        return jnp.any(equal & is_window[:, None, None] & is_theirs[..., None] & (size > 0)[:, None, None, None], axis=(2, 3))

    def embed_passages(self, tower: Tree, numbers: jax.Array, tokens: jax.Array, batch: Batch) -> jax.Array:
        """Embed passages, as many at a time as the retriever embeds of a batch: float32[count, width].

        Args:
          tower: parameters of the retriever, as of `split`.
          numbers: int32[count], the numbers of the passages.
          tokens: [rows, passage length] of the passages.
          batch: a batch, which has the control tokens.
        """
        rows = len(batch["encoder_input_tokens"]) // self.pieces
        parts = -(-len(numbers) // (rows * self.candidates))
        at_once = -(-len(numbers) // (parts * rows)) * rows  # a multiple of the rows divides among the devices
        padded = jnp.pad(numbers, (0, parts * at_once - len(numbers)), constant_values=-1).reshape(parts, at_once)

        def embed(numbers: jax.Array) -> jax.Array:
            pieces, lengths = gather_tokens(tokens, numbers[:, None])
            return self._embed(tower, self._texts(batch, pieces[:, 0], lengths[:, 0], 0), key=None, train=False)

        vectors: jax.Array = jax.lax.map(embed, padded)
        return vectors.reshape(parts * at_once, -1)[: len(numbers)]

    def _texts(self, batch: Batch, tokens: jax.Array, lengths: jax.Array, count: int) -> Batch:
        """Return the features of passages `[CLS] z [SEP]`, given int32[n, length] and int32[n].

        Their control tokens are those of the rows of the batch, of which each has `count` passages; 0: of any row.
        """
        first, last = _controls(batch)
        controls = [jnp.repeat(one, count)[:, None] if count else jnp.max(one) for one in (first, last)]
        place = jnp.arange(_rounded(tokens.shape[1] + 2, self.model.max_length))
        size = lengths[:, None]
        shifted = jnp.pad(tokens, ((0, 0), (1, len(place) - tokens.shape[1] - 1)))
        text = jnp.where(place <= size, shifted, jnp.where(place == size + 1, controls[1], 0))
        return _features(jnp.where(place == 0, controls[0], text), place <= size + 1)

    def _pairs(self, batch: Batch, candidates: Candidates) -> Batch:
        """Return the features of the reader's rows `[CLS] x [SEP] z [SEP]`: [batch * candidates, length]."""
        rows, count = candidates.lengths.shape
        tokens, size = candidates.tokens.reshape(rows * count, -1), candidates.lengths.reshape(rows * count, 1)
        query, types, sizes, (_, last) = jax.tree.map(
            lambda value: jnp.repeat(value, count, axis=0),
            (batch["encoder_input_tokens"], batch["encoder_token_type_ids"], _sizes(batch)[:, None], _controls(batch)),
        )
        place = jnp.arange(self._read_length(query.shape[1]))
        query, types = (jnp.pad(value, ((0, 0), (0, len(place) - query.shape[1]))) for value in (query, types))
        after = place - sizes
        passage = jnp.take_along_axis(tokens, jnp.clip(after, 0, tokens.shape[1] - 1), axis=1)
        following = jnp.where(after < size, passage, jnp.where((after == size) & (size > 0), last[:, None], 0))
        is_real = place < sizes + jnp.where(size > 0, size + 1, 0)
        second = min(1, getattr(self.model, "type_vocab_size", 1) - 1)  # models with one type of text have type 0 alone
        features = _features(jnp.where(after < 0, query, following), is_real)
        return dict(features) | {"encoder_token_type_ids": jnp.where(after < 0, types, jnp.where(is_real, max(0, second), 0))}

    def _embed(self, tower: Tree, texts: Batch, *, key: jax.Array | None, train: bool) -> jax.Array:
        return self._retriever.embedded(tower, texts, key=key, train=train)

    def _read_length(self, length: int) -> int:
        """Return the positions of the reader's rows, given those of a query."""
        return _rounded(length + self.passage_length + 1, self.model.max_length)

    @property
    def _retriever(self) -> DualEncoder:
        # Its own rows, of a query of one token and a passage, are never made.
        settings: dict[str, Any] = {"projection": self.projection, "pooling": self.pooling, "normalize": self.normalize}
        return DualEncoder(self.model, self.execution, query_length=1, **settings)

    @property
    def _width(self) -> int:
        return self.projection or self.model.hidden_size

    @property
    def _count(self) -> int:
        """Number of passages."""
        if self.index is not None:
            return Index.open(self.index).passages
        if self.passages is None:
            raise UserError(
                "no index of passages is named: --gin.INDEX='\"DIR\"', made by `bertfam index`; or for a plan their number, "
                "--gin.Realm.passages=13_000_000"
            )
        return self.passages

    @override
    def flops(self, shape: RowShape) -> int:
        passage, predictions = self.passage_length + 2, shape.predictions
        reader = self.candidates * self.model.flops(shape.length + self.passage_length + 1, predictions)
        retriever = (1 + 1 / 3) * self.model.flops(shape.length, 0) + self.candidates * self.model.flops(passage, 0)
        refreshed = 0 if self.refresh is None else -(-self._count // self.refresh) / shape.rows * self.model.flops(passage, 0) / 3
        found = 2 * self._count * self._width
        return int(reader + retriever + refreshed + found)


def _query(batch: Batch) -> Batch:
    """Return the features by which the retriever embeds the queries of a batch."""
    return _features(batch["encoder_input_tokens"], batch["encoder_segment_ids"] > 0)


def _features(tokens: jax.Array, is_real: jax.Array) -> Batch:
    """Return the features of texts that begin with [CLS], given int32[n, length] and bool[n, length]."""
    zeros = jnp.zeros_like(tokens)
    names = ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids")
    values = (jnp.where(is_real, tokens, 0), is_real.astype(jnp.int32), zeros)
    features = dict(zip(names, (nn.with_logical_constraint(value, ("batch", None)) for value in values), strict=True))
    return features | {"starts": zeros[:, :1]}


def _sizes(batch: Batch) -> jax.Array:
    """Return the number of tokens of each row, control tokens included: int32[batch]."""
    return jnp.sum(batch["encoder_segment_ids"] > 0, axis=1, dtype=jnp.int32)


def _controls(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Return the first and the last token of each row, int32[batch] each; 0 of padding rows."""
    tokens, last = batch["encoder_input_tokens"], _sizes(batch)[:, None] - 1
    place = jnp.arange(tokens.shape[1])
    return tokens[:, 0], jnp.sum(jnp.where(place == last, tokens, 0), axis=1)


def _rounded(length: int, longest: int) -> int:
    return min(-(-length // _MULTIPLE) * _MULTIPLE, longest)


def _windows(tokens: jax.Array, sizes: jax.Array, most: int) -> jax.Array:
    """Hash the tokens from each place on: uint32[..., length], of int32[..., length] and the sizes of windows int32[...].

    Other windows have the same hash by chance once in 2^32 times, which would leave out one candidate.
    """
    factors = np.random.default_rng(0).integers(0, 2**32, most, np.uint32) | np.uint32(1)
    padded = jnp.pad(1 + tokens, [*[(0, 0)] * (tokens.ndim - 1), (0, most)]).astype(jnp.uint32)
    length, total = tokens.shape[-1], jnp.zeros(tokens.shape, jnp.uint32)
    for offset, factor in enumerate(factors):
        part = jax.lax.slice_in_dim(padded, offset, offset + length, axis=-1)
        total += jnp.where(offset < sizes[..., None], part * factor, jnp.uint32(0))
    return total
