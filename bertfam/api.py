"""Python API: trained or imported models with their vocabularies, to apply and to generate text with."""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.call_arguments import check_list, check_path, check_text, check_texts, check_whole_number, describe
from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.end_tokens import end_tokens, end_tokens_of_folder
from bertfam.decoding.generate import Text, check_options, generate
from bertfam.decoding.stepper import Ends
from bertfam.decoding.strategies import Greedy, Limits, Strategy
from bertfam.embedding.embedder import Embedder
from bertfam.errors import UserError, warn
from bertfam.features import SENTENCES
from bertfam.finetuning.answers import find_answers
from bertfam.finetuning.predictions import predictions
from bertfam.finetuning.predictor import Predictor, make_predictor
from bertfam.finetuning.published import has_classifier, open_published
from bertfam.finetuning.target_predictor import TargetPredictor
from bertfam.interop.sentence_transformers import EmbeddingSettings, find_settings
from bertfam.layers.execution import Execution
from bertfam.layers.pooling import PoolingMode
from bertfam.layers.stack import divided
from bertfam.models.bert import BertConfig
from bertfam.models.electra import replaced_token_head
from bertfam.models.encoder import (
    CROSS_ATTENTION,
    EncoderConfig,
    MaskedLmConfig,
    hidden_to_predict,
    pooler,
    sentence_head,
    word_table,
)
from bertfam.models.language_model import LanguageModelConfig, encode, logits, word_embeddings
from bertfam.objectives.fine_tuning.heads import SpanExtraction
from bertfam.plurals import plural
from bertfam.sharding import libtpu
from bertfam.storage.paths import to_path
from bertfam.suggest import did_you_mean
from bertfam.training.trained_networks import Network, read_network, read_networks

_INTERMEDIATES = ("hidden_states", "attention_probs", "attention_queries", "attention_keys", *CROSS_ATTENTION)


@dataclass(frozen=True)
class Model:
    """Encoder with its parameters and vocabulary.

    Attributes:
      config: config of its family.
      params: {"encoder": ...} and the heads that it has among "pooler", "mlm_head", "rtd_head" and those of `SENTENCES`, such as
        "nsp_head".
      vocabulary: vocabulary that it was trained on.
      embedding: settings by which it embeds texts.
      shifted: True if the masked-token head predicts a token at the position before it, as after `CausalAndMasked.shifted`.
    """

    config: EncoderConfig
    params: dict[str, Any]
    vocabulary: Vocabulary
    embedding: EmbeddingSettings = field(default=EmbeddingSettings(), kw_only=True)
    shifted: bool = field(default=False, kw_only=True)

    def __repr__(self) -> str:
        return _describe(self)

    def apply(
        self,
        tokens: np.ndarray | jax.Array,
        *,
        segment_ids: np.ndarray | jax.Array | None = None,
        token_type_ids: np.ndarray | jax.Array | None = None,
        masked_positions: np.ndarray | jax.Array | None = None,
        collect: Collection[str] = (),
    ) -> dict[str, jax.Array]:
        """Run the model in full float32 on every platform, without dropout.

        Args:
          tokens: int32[batch, length].
          segment_ids: int32[batch, length], 1 for tokens and 0 for padding, which comes after them; None: each pad token is
            padding.
          token_type_ids: int32[batch, length], 0 or 1; None: all 0.
          masked_positions: int32[batch, predictions], positions whose tokens are predicted; None: all.
          collect: intermediates to return too: "hidden_states", "attention_probs", "attention_queries", "attention_keys".

        Returns:
          `hidden` float32[batch, length, embed]; where the model has these heads `pooled` float32[batch, embed], `mlm_logits`
          float32[batch, predictions, vocabulary], `nsp_logits` float32[batch, 2] (or `sop_logits`, or `structure_logits`
          float32[batch, 3]) and `rtd_logits` float32[batch, length], that a token is replaced; and the intermediates
          that `collect` names.

        Raises:
          UserError: `tokens` are not ids of the vocabulary in this shape, rows are longer than the model's table of positions, or
            have padding before tokens, which would move positions and [CLS]; or the other arguments are not whole numbers that
            fit them; or the model is a fine-tuned causal LM or encoder-decoder.
        """
        self._check_is_encoder()
        tokens = _check_tokens(tokens, self.vocabulary)
        if segment_ids is None:
            segment_ids = tokens != self.vocabulary.token_ids.pad
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(tokens)
        segment_ids = _check_shape(segment_ids, "segment_ids", tokens)
        # A model without a table of types ignores them.
        types = getattr(self.config, "type_vocab_size", 0) or 2
        token_type_ids = _check_shape(token_type_ids, "token_type_ids", tokens, types)
        if masked_positions is not None:
            masked_positions = _check_positions(masked_positions, tokens)
        if not isinstance(segment_ids, jax.core.Tracer):
            real = np.asarray(segment_ids) > 0
            rows = np.flatnonzero((real[:, 1:] & ~real[:, :-1]).any(axis=1))
            if rows.size:
                raise UserError(f"row {rows[0]} has padding before a token: put padding behind the tokens, or give segment_ids")
        # "float32" alone would mean TF32 on GPUs and bfloat16 passes on TPUs.
        with jax.default_matmul_precision("highest"):
            return self._forward(self.params, tokens, segment_ids, token_type_ids, masked_positions, _names(collect))

    def _check_is_encoder(self) -> None:
        if "decoder" in self.params:
            raise UserError(
                f"{type(self.config).__name__} is no encoder, and this model is fine-tuned on labels: use predict or "
                "probabilities, or load the model that it started from"
            )

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: PoolingMode | None = None,
        normalize: bool | None = None,
        length: int | None = None,
        prompt_name: str | None = None,
        batch_size: int = 32,
    ) -> np.ndarray:
        """Embed texts: the pooled hidden states of the last layer, in full float32 on every platform, without dropout.

        A warning says how many texts are cut.

        Args:
          texts: texts.
          pooling: "mean" or "max" over all tokens, or "cls", the hidden state at [CLS]; None: that of the folder's
            sentence-transformers files, or of the objective that the model was trained with.
          normalize: scale embeddings to length 1; None: as the folder says.
          length: tokens, with the control tokens, beyond which texts are cut; None: as the folder says, or the rows that the
            model was trained with.
          prompt_name: name of the folder's prompt that is put before each text, such as "query"; None: its default.
          batch_size: texts at a time.

        Returns:
          float32[texts, embed].

        Raises:
          UserError: an argument is of another type, or the model cannot embed texts so.
        """
        self._check_is_encoder()
        if pooling is not None and pooling not in get_args(PoolingMode):
            raise UserError(f"pooling is {describe(pooling)}, and must be one of {', '.join(get_args(PoolingMode))}")
        for name, number in (("length", length), ("batch_size", batch_size)):
            if number is not None and check_whole_number(number, name) < 1:
                raise UserError(f"{name} is {number}, and must be at least 1")
        embedder = Embedder.create(
            self.config, self._divided, self.vocabulary, self.embedding, pooling=pooling, normalize=normalize, length=length
        )
        if prompt_name is not None:
            embedder = embedder.prompted(check_text(prompt_name, "prompt_name"))
        vectors, cut = embedder.embed(check_texts(texts, "texts"), batch_size)
        if cut:
            warn([f"{plural(cut, 'text')} of {len(vectors):,} cut after {embedder.length} tokens"])
        return vectors

    @cached_property
    def _divided(self) -> dict[str, Any]:
        return divided({"encoder": self.params["encoder"]})

    @cached_property
    def _forward(self) -> Any:
        config, execution, shifted = self.config, Execution(), self.shifted

        def forward(
            params: Any, tokens: jax.Array, segment_ids: jax.Array, types: jax.Array, positions: Any, collect: tuple[str, ...]
        ) -> dict[str, jax.Array]:
            encoder: Any = config.encoder(execution)
            inputs = {"tokens": tokens, "segment_ids": segment_ids, "token_type_ids": types}
            hidden, collected = encoder.apply({"params": params["encoder"]}, **inputs, train=False, collect=frozenset(collect))
            result = {"hidden": hidden, **collected}
            if "pooler" in params:
                result["pooled"] = pooler(config).apply({"params": params["pooler"]}, hidden[:, 0])
            for asked in SENTENCES.values():
                if asked.head in params:
                    classes: Any = sentence_head(config, len(asked.classes))
                    result[f"{asked.term}_logits"] = classes.apply({"params": params[asked.head]}, result["pooled"])
            if "rtd_head" in params:
                head: Any = replaced_token_head(cast(BertConfig, config))
                result["rtd_logits"] = head.apply({"params": params["rtd_head"]}, hidden)
            if "mlm_head" in params:
                picked = jnp.roll(hidden, 1, axis=1) if shifted else hidden
                if positions is not None:
                    places = jnp.maximum(jnp.asarray(positions, jnp.int32) - int(shifted), 0)
                    picked = hidden_to_predict(config, params, inputs, hidden, places)
                mlm_head: Any = cast(MaskedLmConfig, config).masked_lm_head()
                logits = mlm_head.apply({"params": params["mlm_head"]}, picked, word_table(params))
                result["mlm_logits"] = logits[..., : config.require_vocab_size]
            return result

        return jax.jit(forward, static_argnums=5)


@dataclass(frozen=True, repr=False)
class FineTunedModel(Model):
    """Encoder with a fine-tuned head that predicts labels of texts.

    Attributes:
      predictor: the predictions.
    """

    predictor: Predictor

    def predict(self, texts: Sequence[Any], batch_size: int = 32) -> list[Any]:
        """Predict the label of each text, or of each word.

        Args:
          texts: texts; pairs of two texts where the model was trained on pairs; lists of words where it was trained on words; or
            pairs (QUESTION, CONTEXT).
          batch_size: texts at a time.

        Returns:
          for each text the name of its class; the names of its classes, for a model with several; its number; the tags of its
          words; or the answer, a part of the context, "" where there is none.

        Raises:
          UserError: `texts` are no list of texts, or not of pairs or words where the model was trained on these.
        """
        head = self.predictor.objective.head
        if head.labels_words:
            sentences = check_list(texts, "texts", "lists of words")
            for place, words in enumerate(sentences):
                if isinstance(words, str):
                    raise UserError(f"texts[{place}] must be a list of words, not one text: write {words.split()!r}")
                sentences[place] = check_texts(words, f"texts[{place}]")
            outputs = self.predictor.word_outputs(sentences, batch_size)
            return [[row[0] for row in predictions(head, own)] for own in outputs]
        if isinstance(head, SpanExtraction):
            answers = find_answers(self.predictor, self._pairs(texts), batch_size=batch_size)
            return [answer.predicted(head) for answer in answers]
        return [row[0] for row in predictions(head, self._outputs(texts, batch_size))]

    def probabilities(self, texts: Sequence[Any], batch_size: int = 32) -> list[dict[str, float]]:
        """Predict the probability of each class of each text, by the names of the classes; see `predict`.

        Raises:
          UserError: as `predict`, or if the model predicts numbers or tags of words.
        """
        head = self.predictor.objective.head
        classes = head.class_names
        if not classes or head.labels_words:
            raise UserError("only classes of texts have probabilities here: use predict")
        rows = predictions(head, self._outputs(texts, batch_size), probabilities=True)
        return [dict(zip(classes, row[-len(classes) :], strict=True)) for row in rows]

    def _pairs(self, texts: Any) -> list[tuple[str, str]]:
        pairs = check_list(texts, "texts", "pairs (QUESTION, CONTEXT)")
        for place, pair in enumerate(pairs):
            if len(check_texts(pair, f"texts[{place}]")) != 2:
                raise UserError(f"texts[{place}] must be a pair (QUESTION, CONTEXT), not {describe(pair)}")
        return [(question, context) for question, context in pairs]

    def _outputs(self, texts: Any, batch_size: int) -> np.ndarray:
        parts = [tuple(one) if isinstance(one, tuple | list) else (one,) for one in check_list(texts, "texts")]
        for place, one in enumerate(parts):
            check_texts(one, f"texts[{place}]" if len(one) > 1 else "texts")
        if check_whole_number(batch_size, "batch_size") < 1:
            raise UserError(f"batch_size is {batch_size}, and must be at least 1")
        return self.predictor.outputs(parts, batch_size)


@dataclass(frozen=True)
class LanguageModel:
    """Causal LM or encoder-decoder with its parameters and vocabulary.

    Attributes:
      config: config of its family.
      params: see `bertfam.models.language_model`.
      vocabulary: vocabulary that it was trained on.
      ends: tokens that begin and end its texts.
    """

    config: LanguageModelConfig
    params: dict[str, Any]
    vocabulary: Vocabulary
    ends: Ends

    def __repr__(self) -> str:
        return _describe(self)

    def generate(
        self,
        prompts: Sequence[str] | Sequence[np.ndarray],
        strategy: Strategy | str = Greedy(),  # noqa: B008 - frozen
        limits: Limits = Limits(),  # noqa: B008
        **options: Any,
    ) -> list[list[Text]]:
        """Generate texts for each prompt, the best first; see `bertfam.decoding.generate.generate` and its options."""
        check_options(options)
        return generate(self, prompts, strategy, limits, **options)

    def apply(
        self,
        tokens: np.ndarray | jax.Array,
        *,
        segment_ids: np.ndarray | jax.Array | None = None,
        encoder_tokens: np.ndarray | jax.Array | None = None,
        encoder_segment_ids: np.ndarray | jax.Array | None = None,
        collect: Collection[str] = (),
    ) -> dict[str, jax.Array]:
        """Run the model in full float32 on every platform, without dropout.

        Args:
          tokens: int32[batch, length], input of the decoder; in an encoder-decoder it begins with `ends.start`.
          segment_ids: int32[batch, length], 1 for tokens and 0 for padding, before or behind them; None: all are tokens.
          encoder_tokens: int32[batch, source length], input of the encoder; None without an encoder.
          encoder_segment_ids: int32[batch, source length], 1 for tokens and then 0 for padding; None: all are tokens.
          collect: intermediates of the decoder to return too: "hidden_states", "attention_probs", "attention_queries",
            "attention_keys", and the same three of cross-attention, "cross_attention_probs" and so on.

        Returns:
          `logits` float32[batch, length, vocabulary], of the token after each; `hidden` float32[batch, length, embed], the
          decoder's output; `encoded`, the encoder's output; and the intermediates that `collect` names.

        Raises:
          UserError: the encoder's tokens are missing, or there is no encoder for them; or they are not ids of the vocabulary in
            this shape.
        """
        if ("encoder" in self.params) != (encoder_tokens is not None):
            raise UserError(
                "the model has an encoder: give encoder_tokens, its input"
                if encoder_tokens is None
                else "the model has no encoder for encoder_tokens: put all into tokens"
            )
        # [batch, length] each
        row = self._row(tokens, segment_ids)
        source = None if encoder_tokens is None else self._row(encoder_tokens, encoder_segment_ids, "encoder_")
        with jax.default_matmul_precision("highest"):
            return self._forward(self.params, row, source, _names(collect))

    def encode(
        self,
        tokens: np.ndarray | jax.Array,
        *,
        segment_ids: np.ndarray | jax.Array | None = None,
        collect: Collection[str] = (),
    ) -> dict[str, jax.Array]:
        """Run the encoder of an encoder-decoder alone, in full float32 on every platform, without dropout.

        Args:
          tokens: int32[batch, length].
          segment_ids: int32[batch, length], 1 for tokens and then 0 for padding; None: all are tokens.
          collect: intermediates of the encoder to return too: "hidden_states", "attention_probs", "attention_queries",
            "attention_keys".

        Returns:
          `hidden` float32[batch, length, embed], the encoder's output, and the intermediates that `collect` names.

        Raises:
          UserError: the model has no encoder, or `tokens` are not ids of the vocabulary in this shape.
        """
        if "encoder" not in self.params:
            raise UserError("the model is a causal LM and has no encoder: use apply, which returns the decoder's hidden states")
        with jax.default_matmul_precision("highest"):
            return self._encode(self.params, self._row(tokens, segment_ids), _names(collect))

    def _row(self, tokens: Any, segment_ids: Any, prefix: str = "") -> tuple[jax.Array, jax.Array]:
        """Return tokens and segment ids, int32[batch, length] each."""
        tokens = _check_tokens(tokens, self.vocabulary, f"{prefix}tokens")
        segment_ids = jnp.ones_like(tokens) if segment_ids is None else segment_ids
        return tokens, _check_shape(segment_ids, f"{prefix}segment_ids", tokens)

    @cached_property
    def _encode(self) -> Any:
        def run(params: Any, row: Any, collect: tuple[str, ...]) -> dict[str, jax.Array]:
            tokens, segment_ids = row
            hidden, collected = encode(self.config, params, tokens, segment_ids, collect=frozenset(collect))
            return {"hidden": hidden, **collected}

        return jax.jit(run, static_argnums=2)

    @cached_property
    def _forward(self) -> Any:
        config, execution = self.config, Execution()

        def forward(params: Any, row: Any, source: Any, collect: tuple[str, ...]) -> dict[str, jax.Array]:
            words, result, source_inputs = word_embeddings(params), {}, {}
            if source is not None:
                result["encoded"] = self._encode(params, source, ())["hidden"]
                source_inputs = {"encoded": result["encoded"], "encoded_segment_ids": source[1]}
            tokens, segment_ids = row
            decoder: Any = config.decoder(execution)
            hidden, collected = decoder.apply(
                {"params": params["decoder"]},
                words,
                tokens,
                segment_ids=segment_ids,
                # from 0 at the first token, behind any padding
                positions=jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0),
                train=False,
                collect=frozenset(collect),
                **source_inputs,
            )
            token_logits = logits(config, params, hidden, execution)[..., : config.require_vocab_size]
            return result | {"hidden": hidden, "logits": token_logits, **collected}

        return jax.jit(forward, static_argnums=3)


@dataclass(frozen=True, repr=False)
class FineTunedLanguageModel(LanguageModel):
    """Causal LM or encoder-decoder that is fine-tuned to generate target texts.

    Attributes:
      predictor: the predictions.
    """

    predictor: TargetPredictor

    def predict(
        self,
        texts: Sequence[str | Mapping[str, str]],
        strategy: Strategy | str = Greedy(),  # noqa: B008 - frozen
        batch_size: int = 8,
    ) -> list[str]:
        """Generate the target of each text.

        Texts are read as in training, within its --text="...{column}..." and cut to its length; `generate` reads prompts as they
        are.

        Args:
          texts: texts; dicts of texts by column where the model was trained on several columns.
          strategy: see `generate`.
          batch_size: texts at a time.

        Raises:
          UserError: an argument has another type.
        """
        filled = []
        for place, text in enumerate(check_list(texts, "texts")):
            check_texts(list(text.values()) if isinstance(text, Mapping) else [text], f"texts[{place}]")
            filled.append(self.predictor.corpus.filled(text))
        return [text.text for text in self.predictor.generate(filled, strategy, batch_size)]


Generator = LanguageModel  # former name of the class


def _check_tokens(tokens: Any, vocabulary: Vocabulary, name: str = "tokens") -> jax.Array:
    """Return the tokens as int32[batch, length]; raise UserError if they are not ids of the vocabulary in this shape."""
    shape = f"{name} must be whole numbers of the shape [batch, length]"
    try:
        array = tokens if isinstance(tokens, jax.Array) else np.asarray(tokens)
    except ValueError as error:
        raise UserError(f"{shape}, but their rows differ in length: fill them up with the padding token") from error
    if array.dtype.kind in "UO":
        kind = "text" if isinstance(tokens, str) or array.dtype.kind == "U" else f"an object of type {type(tokens).__name__}"
        raise UserError(f"{shape}, not {kind}: model.vocabulary.encode_prompt(text).ids[None] encodes one text")
    if array.ndim != 2 or array.dtype.kind not in "iu":
        fix = f": write {name}[None]" if array.ndim == 1 and array.dtype.kind in "iu" else ""
        raise UserError(f"{shape}, not {array.dtype} of the shape {list(array.shape)}{fix}")
    if not isinstance(array, jax.core.Tracer) and array.size:
        least, most = int(array.min()), int(array.max())
        if least < 0 or most >= vocabulary.size:
            wrong = least if least < 0 else most
            raise UserError(f"{name} have the id {wrong}, but those of the vocabulary are 0 to {vocabulary.size - 1}")
    return jnp.asarray(array, jnp.int32)


def _names(collect: Collection[str]) -> tuple[str, ...]:
    """Return the intermediates to collect, sorted; raise UserError if there are none of these names."""
    # The order of a set does not matter.
    names = check_list(sorted(collect, key=str) if isinstance(collect, Set) else collect, "collect", "names")
    for name in names:
        if name not in _INTERMEDIATES:
            fix = did_you_mean(name, _INTERMEDIATES) if isinstance(name, str) else ""
            raise UserError(f"collect names {describe(name)}, which is not one of {', '.join(_INTERMEDIATES)}{fix}")
    return tuple(sorted(names))


def _check_shape(value: Any, name: str, tokens: jax.Array, most: int | None = None) -> jax.Array:
    """Return the value as int32[batch, length]; raise UserError if it is no whole number below `most` for each token."""
    array = _whole_numbers(value, name, most)
    if array.shape != tokens.shape:
        raise UserError(
            f"{name} have the shape {list(array.shape)}, but the tokens {list(tokens.shape)}: give one number a token"
        )
    return array


def _check_positions(value: Any, tokens: jax.Array) -> jax.Array:
    """Return masked positions as int32[batch, predictions]; raise UserError if they are not positions in these rows."""
    name = "masked_positions"
    if getattr(getattr(value, "dtype", None), "kind", "") == "b":
        raise UserError(f"{name} are positions, not booleans: np.flatnonzero gives those of a row")
    array = _whole_numbers(value, name, tokens.shape[1])
    if array.ndim != 2 or array.shape[0] != tokens.shape[0]:
        raise UserError(f"{name} have the shape {list(array.shape)}, but must have [{tokens.shape[0]}, predictions]")
    return array


def _whole_numbers(value: Any, name: str, most: int | None) -> jax.Array:
    """Return the value as int32; raise UserError if it has anything but whole numbers from 0, and below `most`."""
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except ValueError as error:
        raise UserError(f"{name} must be an array of whole numbers, but their rows differ in length") from error
    if array.dtype.kind not in "iubf":
        raise UserError(f"{name} must be whole numbers, not {array.dtype}")
    if not isinstance(array, jax.core.Tracer) and array.size:
        least, greatest = array.min(), array.max()
        if not (least >= 0 and (most is None or greatest < most)):
            bounds = "at least 0" if most is None else f"0 to {most - 1}"
            raise UserError(f"{name} must be {bounds}, not {least if not least >= 0 else greatest}")
        if array.dtype.kind == "f" and (array != np.floor(array)).any():
            raise UserError(f"{name} must be whole numbers, not fractions")
    return jnp.asarray(array, jnp.int32)


def _describe(model: "Model | LanguageModel") -> str:
    """Describe a model on one line, without its arrays."""
    count = sum(np.size(leaf) for leaf in jax.tree.leaves(model.params))
    parts, vocabulary = ", ".join(sorted(model.params)), model.vocabulary
    tokens = f"{type(vocabulary).__name__} of {vocabulary.size:,} tokens"
    return f"<{type(model).__name__} {model.config!r} with {parts}: {count:,} parameters, {tokens}>"


def load(path: str | Path, *, step: int | None = None, network: str | None = None) -> Model | LanguageModel:
    """Load a model from a MODEL_DIR or a Hugging Face folder (config.json, safetensors, tokenizer files).

    The MODEL_DIR of `bertfam finetune` gives a `FineTunedModel`, which predicts labels of texts, or a `FineTunedLanguageModel`,
    which generates target texts. The Hugging Face folder of a classifier, such as BertForSequenceClassification, gives a
    `FineTunedModel`, too. The caller's gin bindings do not change.

    Args:
      path: the folder.
      step: step of a MODEL_DIR's checkpoint; None: the newest.
      network: name of the network where a folder holds several: "discriminator" or "generator" of ELECTRA, "encoder" for the
        encoder of an encoder-decoder alone; None: the first, or all of an encoder-decoder.

    Raises:
      UserError: the folder is neither of the two, is incomplete, or has no such network; or an argument has another type.
    """
    libtpu.quieten()
    _check_folder(path, step)
    if network is not None:
        check_text(network, "network")
    if network is None and step is None and has_classifier(path):
        try:
            return _fine_tuned(path, open_published(path))
        except UserError as error:
            warn([f"{error}: the model is loaded without predict"])
    read = read_network(path, step=step, network=network)
    predictor = make_predictor(read.trained) if network is None and read.trained else None
    if isinstance(predictor, TargetPredictor):
        return FineTunedLanguageModel(read.config, read.params, read.vocabulary, predictor.ends, predictor)
    if predictor:
        return FineTunedModel(read.config, read.params, read.vocabulary, predictor, embedding=read.embedding)
    return _make_model(path, read)


def _fine_tuned(path: str | Path, predictor: Predictor) -> FineTunedModel:
    """Return the API's model of a Hugging Face folder with a classifier."""
    config: Any = predictor.objective.model
    settings = find_settings(to_path(path))
    return FineTunedModel(config, predictor.params, predictor.vocabulary, predictor, embedding=settings)


def load_networks(path: str | Path, *, step: int | None = None, average: bool = False) -> dict[str, Model | LanguageModel]:
    """Load all networks of a folder, by name, as `load` does; a Hugging Face folder has one.

    With `average`, the parameters are their moving average in a MODEL_DIR.
    """
    libtpu.quieten()
    _check_folder(path, step)
    if not isinstance(average, bool):
        raise UserError(f"average must be True or False, not {describe(average)}")
    networks = read_networks(path, step=step, average=average)
    return {name: _make_model(path, network) for name, network in networks.items()}


def _check_folder(path: Any, step: Any) -> None:
    """Raise UserError if the arguments are no path and no step."""
    check_path(path, "path")
    if step is not None:
        check_whole_number(step, "step")


def _make_model(path: str | Path, network: Network) -> Model | LanguageModel:
    """Make the API's model of a network of the folder `path`; the files of a Hugging Face folder may name the end tokens."""
    from bertfam.interop.folders import is_huggingface

    config, params, vocabulary = network.config, network.params, network.vocabulary
    if "decoder" not in params:
        return Model(config, params, vocabulary, embedding=network.embedding, shifted=network.shifted)
    tokens = vocabulary.token_ids
    return LanguageModel(
        config,
        params,
        vocabulary,
        end_tokens_of_folder(config, tokens, to_path(path)) if is_huggingface(path) else end_tokens(config, tokens),
    )
