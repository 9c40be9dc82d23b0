"""Models that are analysed, rows of texts for them, and the intermediates that they return."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from bertfam.api import LanguageModel, Model, load
from bertfam.corruption.token_ids import ControlToken, TextFrame
from bertfam.data.rows.labelled.labelled_texts import frame_size, truncated
from bertfam.data.rows.length_batches import length_batches
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.layers.initializers import named_key
from bertfam.models.encoder import init_encoder
from bertfam.models.language_model import init_language_model
from bertfam.models.network import Kind

_LONGEST = 512  # tokens of a row where the model has no limit, as in T5
NO_TEXT = -1  # text of a control token, word of a piece that belongs to no word


class TokenRow(NamedTuple):
    """Tokens of one text or two, with the control tokens around them.

    Attributes:
      ids: int32[length].
      types: int32[length], token types.
      texts: int32[length], 0 for tokens of the first text, 1 for those of the second, -1 for control tokens.
      offsets: int32[length, 2], start and end of each token in characters of its text; (0, 0) for control tokens.
      is_cut: True if the end of a text is cut off.
    """

    ids: np.ndarray
    types: np.ndarray
    texts: np.ndarray
    offsets: np.ndarray
    is_cut: bool


@dataclasses.dataclass(frozen=True)
class TextRows:
    """Encoder of texts as rows.

    Attributes:
      vocabulary: the vocabulary.
      frame: control tokens around a text or two.
      length: tokens, with the control tokens, beyond which texts are cut.
    """

    vocabulary: Vocabulary
    frame: TextFrame
    length: int

    def row(self, *texts: str) -> TokenRow:
        """Encode one text or two as running text, and cut it to the length, the longer text first."""
        return frame_texts(self.vocabulary, self.frame, texts, self.length)


@dataclasses.dataclass(frozen=True)
class Subject:
    """Network whose attention is analysed: an encoder or a causal LM.

    Attributes:
      model: the model.
      length: tokens, with the control tokens, beyond which texts are cut.
      whole: the encoder-decoder that the model is the encoder of; None for other models.
    """

    model: Model | LanguageModel
    length: int
    whole: LanguageModel | None = None

    @property
    def kind(self) -> Kind:
        """Kind of the network that was opened."""
        return (self.whole or self.model).config.kind

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the model."""
        return self.model.vocabulary

    @property
    def frame(self) -> TextFrame:
        """Control tokens around a text or two."""
        if isinstance(self.model, LanguageModel):
            start = self.model.ends.start
            before = () if start is None or self.model.config.start is None else (ControlToken(start, 0),)
            return TextFrame(before, (), (), (), 0)
        frame = self.vocabulary.token_ids.frame
        if frame is None:
            raise UserError("the vocabulary does not say which control tokens surround a text, so texts cannot be analysed")
        return frame

    @property
    def rows(self) -> TextRows:
        """Encoder of texts as rows of the model."""
        return TextRows(self.vocabulary, self.frame, self.length)

    def row(self, *texts: str) -> TokenRow:
        """Encode one text or two; see `TextRows.row`."""
        return self.rows.row(*texts)

    def intermediates(self, params: Any, batch: Mapping[str, Any], names: Collection[str]) -> dict[str, jax.Array]:
        """Return the named intermediates of rows, within a jitted function.

        XLA removes what they do not depend on, such as heads.

        Args:
          params: parameters of the model, or others of the same shapes.
          batch: `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[batch, length].
          names: see `bertfam.api.Model.apply`.
        """
        tokens, segment_ids = batch["encoder_input_tokens"], batch["encoder_segment_ids"]
        model = dataclasses.replace(self.model, params=params)
        if isinstance(model, LanguageModel):
            return model.apply(tokens, segment_ids=segment_ids, collect=names)
        return model.apply(tokens, segment_ids=segment_ids, token_type_ids=batch["encoder_token_type_ids"], collect=names)

    def random_params(self, seed: int = 0) -> dict[str, Any]:
        """Initialize parameters of the network anew."""
        key = named_key(jax.random.key(seed), "analysis")
        if isinstance(self.model, LanguageModel):
            return nn.meta.unbox(init_language_model(self.model.config, key))
        fresh = {"encoder": nn.meta.unbox(init_encoder(self.model.config, key))}
        return {**self.model.params, **fresh}


def open_subject(path: str, *, step: int | None = None, network: str | None = None, length: int | None = None) -> Subject:
    """Open the network of a MODEL_DIR or a Hugging Face folder; of an encoder-decoder, its encoder.

    Args:
      path: the folder.
      step: step of a MODEL_DIR's checkpoint; None: the newest.
      network: name of the network where a folder has several; None: the first.
      length: tokens beyond which texts are cut; None: the model's longest row.

    Raises:
      UserError: the folder has no such network, or the model has no such rows.
    """
    model = load(path, step=step, network=network)
    limit = model.config.max_length
    if length is not None and limit is not None and length > limit:
        raise UserError(f"--length={length} is more than {limit}, the tokens of the model's longest row; lower it")
    length = length or limit or _LONGEST
    if isinstance(model, LanguageModel) and "encoder" in model.params:
        return Subject(load(path, step=step, network="encoder"), length, whole=model)
    return Subject(model, length)


def frame_texts(vocabulary: Vocabulary, frame: TextFrame, texts: Sequence[str], length: int) -> TokenRow:
    """Encode one text or two with the control tokens of a frame, cut to `length` tokens.

    Raises:
      UserError: there is no room for text beside the control tokens.
    """
    encodings = [vocabulary.encode(text) for text in texts]
    is_pair = len(texts) == 2
    room = length - frame_size(frame, is_pair=is_pair)
    if room < len(texts):
        raise UserError(f"rows of {length} tokens are too short for control tokens and text: raise --length")
    sizes = np.array([[len(encoding.ids) for encoding in encodings]])
    kept = truncated(sizes, room)[0]
    parts: list[tuple[np.ndarray, int, int, np.ndarray]] = []  # ids, type, text, offsets

    def add_controls(controls: Sequence[ControlToken]) -> None:
        parts.extend((np.array([one.id]), one[1], NO_TEXT, np.zeros((1, 2), np.int32)) for one in controls)

    add_controls(frame.before)
    for number, (encoding, size) in enumerate(zip(encodings, kept, strict=True)):
        if number:
            add_controls(frame.between)
        parts.append((encoding.ids[:size], frame.second_type if number else 0, number, encoding.offsets[:size]))
    add_controls(frame.after_two if is_pair else frame.after_one)
    counts = [len(ids) for ids, *_ in parts]
    return TokenRow(
        np.concatenate([ids for ids, *_ in parts]).astype(np.int32),
        np.repeat([kind for _, kind, _, _ in parts], counts).astype(np.int32),
        np.repeat([text for _, _, text, _ in parts], counts).astype(np.int32),
        np.concatenate([offsets for *_, offsets in parts]).reshape(-1, 2).astype(np.int32),
        bool((kept < sizes[0]).any()),
    )


def row_features(rows: Sequence[TokenRow], pad: int, length: int | None = None) -> dict[str, np.ndarray]:
    """Return the features of rows, padded to a length, or to the longest row: int32[rows, length] each.

    `texts` is -1 at padding too.
    """
    return {
        "encoder_input_tokens": padded([row.ids for row in rows], pad, length),
        "encoder_segment_ids": padded([np.ones_like(row.ids) for row in rows], 0, length),
        "encoder_token_type_ids": padded([row.types for row in rows], 0, length),
        "texts": padded([row.texts for row in rows], NO_TEXT, length),
    }


def padded(arrays: Sequence[np.ndarray], fill: int, length: int | None = None) -> np.ndarray:
    """Return arrays int[n] of several lengths as int32[arrays, length], by default with the length of the longest."""
    table = np.full((len(arrays), length or max(map(len, arrays))), fill, np.int32)
    for row, array in zip(table, arrays, strict=True):
        row[: len(array)] = array
    return table


def batches(features: Mapping[str, np.ndarray], batch_size: int, parts: int = 1) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of rows of similar length, with `valid` float32[batch], 0 for rows that only fill a batch up.

    Args:
      features: features [rows, length].
      batch_size: rows of a batch.
      parts: equal parts of a row, each of which ends with its padding.
    """
    longest = features["encoder_segment_ids"].shape[1]
    for indices, batch in length_batches(features, tuple(features), batch_size, longest, parts):
        count = len(batch["encoder_segment_ids"])
        yield batch | {"valid": (np.arange(count) < len(indices)).astype(np.float32)}
