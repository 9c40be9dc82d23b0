"""SentencePiece vocabularies, unigram and BPE; the `sentencepiece` library defines ids and offsets."""

import functools
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bertfam.call_arguments import check_text
from bertfam.data.vocabularies.added_pieces import with_stated
from bertfam.data.vocabularies.huggingface_files import GENERIC_CLASS, read_config, warn_of_ignored, write_files
from bertfam.data.vocabularies.layouts import LAYOUTS, Layout, find_layout, sentinel_pieces
from bertfam.data.vocabularies.pieces import Pieces, checked_texts, flat, is_ideograph
from bertfam.data.vocabularies.sentence_piece.model_file import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    layout_of,
    parse,
    processor_of,
    running_model,
)
from bertfam.data.vocabularies.sentence_piece.normalization import Cleaning, stated_cleaning
from bertfam.data.vocabularies.sentence_piece.tokenizer_json import check_added, listed_pieces, model_of, without_sentinels
from bertfam.data.vocabularies.sentence_piece.training import count_words, learn_model
from bertfam.data.vocabularies.vocabulary import Encoding
from bertfam.errors import UserError
from bertfam.storage.paths import to_path
from bertfam.storage.untrusted import read_bytes, read_json, typed

SPACE = "▁"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_MAX_SENTINELS = 100_000
_NAMES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")


class SentencePiece(Pieces):
    """SentencePiece vocabulary, which treats text as one stream with spaces shown as ▁.

    The model file defines normalisation and splitting. The sentinels <extra_id_N> follow the pieces of the model file, as in T5
    and seqio. In a prompt a control piece absorbs one space before it and adds none after it.

    Attributes:
      joint: "", because each text begins as if a space preceded it.
      model: the model file, without sentinels.
    """

    joint = ""

    def __init__(
        self,
        model: bytes,
        *,
        layout: Layout | None = None,
        sentinels: int | None = None,
        cleaning: Cleaning | None = None,
    ) -> None:
        """Create a vocabulary from a model file.

        Args:
          model: the file's bytes.
          layout: the control pieces; None uses those of the model.
          sentinels: number of <extra_id_N> after the model's pieces; None: the layout's number unless the model has sentinels.
          cleaning: cleaning of text before the model sees it.

        Raises:
          UserError: it is not a SentencePiece model, or lacks the layout's pieces.
        """
        proto = parse(model)
        names = [piece.piece for piece in proto.pieces]
        layout = layout or find_layout(names) or layout_of(proto)
        if sentinels is None:
            sentinels = 0 if any("<extra_id_0>" in name for name in names) else layout.sentinels
        starts_word = [name.startswith(SPACE) or is_ideograph(name[:1] or " ") for name in names]
        controls = [id for id, piece in enumerate(proto.pieces) if piece.type in (UNKNOWN, CONTROL)]
        super().__init__(
            [*names, *sentinel_pieces(sentinels)],
            layout,
            np.array([*starts_word, *[True] * sentinels], bool),
            sentinels=sentinels,
            more_special=controls,
        )
        self.token_ids.starts_word[self.token_ids.unk] = False  # it may represent a part of a word
        self.model, self.cleaning = model, cleaning
        self._running = processor_of(running_model(proto, self.token_ids.special))
        self._prompts, self._same, self._shown = self._prompt_processor(proto)
        controls_first = sorted(self.pieces([*self.token_ids.special, *self.token_ids.sentinels]), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, controls_first)))

    @classmethod
    def train(cls, texts: Iterable[str], **settings: Any) -> "SentencePiece":
        """Learn pieces from texts; equal texts in any order give equal vocabularies in every process.

        Args:
          texts: running text, read once.
          settings: see `from_words`.
        """
        return cls.from_words(count_words(texts), **settings)

    @classmethod
    def from_words(
        cls, words: Counter[str], *, kind: str = "unigram", layout: Layout = LAYOUTS["albert"], **settings: Any
    ) -> "SentencePiece":
        """Learn pieces from the counts of `count_words`.

        Args:
          words: the number of occurrences of each word in the text.
          kind: "unigram" or "bpe".
          layout: the control pieces.
          settings: see `learn_model`.
        """
        return cls(learn_model(words, kind=kind, layout=layout, **settings), layout=layout)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "SentencePiece":
        """Load a folder that holds spiece.model or one other *.model, or a tokenizer.json that was made from one.

        tokenizer_config.json beside it may state `extra_ids`, the number of sentinels. Text is cleaned first (see `Cleaning`) if
        the files are ALBERT's or XLNet's, as tokenizer_class there or model_type in config.json says.

        Raises:
          UserError: it is not a SentencePiece model.
        """
        folder = to_path(directory)
        stated, config, beside = read_config(folder), folder / "config.json", folder / "tokenizer.json"
        cleaning = stated_cleaning(stated, read_json(config) if config.exists() else {})
        sentinels = typed(stated, "extra_ids", int, folder / "tokenizer_config.json")
        if sentinels is not None and not 0 <= sentinels <= _MAX_SENTINELS:
            raise UserError(f"{folder / 'tokenizer_config.json'}: extra_ids is {sentinels}, and must be 0 to {_MAX_SENTINELS}")
        model_names = sorted(path.name for path in folder.glob("*.model"))
        if not model_names:
            path = beside
            model, sentinels = model_of(path, cleaning)
        else:
            name = next((name for name in _NAMES if name in model_names), model_names[0] if len(model_names) == 1 else None)
            if name is None:
                raise UserError(f"{folder} holds {' and '.join(model_names)}: keep one of them, as spiece.model")
            path = folder / name
            model = read_bytes(path)
        try:
            vocabulary = cls(model, sentinels=sentinels, cleaning=cleaning)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        pieces = vocabulary.pieces(range(vocabulary.size))
        if beside.exists():
            check_added(beside, pieces)
            if path != beside:
                warn_of_ignored(beside, listed_pieces, without_sentinels(pieces), path.name, fix="")
        with_stated(folder, stated, {}, pieces)
        return vocabulary

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the ids."""
        cleaning = None if self.cleaning is None else self.cleaning.settings()
        settings = [len(self.token_ids.sentinels), hashlib.sha256(self.model).hexdigest(), cleaning]
        return hashlib.sha256(json.dumps(["sentencepiece", settings, self._pieces]).encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode running texts, int32[length] each, without control ids and frame."""
        texts = checked_texts(texts)
        cleaned = texts if self.cleaning is None else [self.cleaning.clean(text)[0] for text in texts]
        return [np.array(ids, np.int32) for ids in self._running.encode(cleaned, out_type=int)]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode running texts, without control ids and frame: all ids, and the number of each text's."""
        return flat(self.encode_batch(texts))

    def encode(self, text: str) -> Encoding:
        """Encode one running text, with pieces and offsets; a piece that begins with ▁ covers the space before its word."""
        return self._encoding(self._split(self._running, text))

    def encode_prompt(self, text: str, *, frame: bool = True) -> Encoding:
        """Encode one text in the layout's frame; an exactly typed control piece becomes the control token."""
        split = self._split(self._prompts, text, self._controls)
        rows = [(int(self._same[id]), begin, end) for id, begin, end in split]
        if frame:
            before, after = ([(self._ids[piece], 0, 0) for piece in pieces] for pieces in self.layout.frame)
            rows = [*before, *rows, *after]
        return self._encoding(rows)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Decode ids to text, with spaces around control pieces; `skip_special` leaves out control tokens and unknowns."""
        kept = self._checked(ids)
        if skip_special:
            special = {*self.token_ids.special, *self.token_ids.sentinels}
            kept = [id for id in kept if id not in special]
        return self._prompts.decode([int(self._shown[id]) for id in kept])

    def respell(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """Encode pieces of another vocabulary, see `Vocabulary.respell`; the result is empty for byte pieces."""
        proto = running_model(parse(self.model), self.token_ids.special)
        # No space is added before a piece.
        proto.normalizer_spec.add_dummy_prefix = proto.normalizer_spec.remove_extra_whitespaces = False
        texts = ["" if _BYTE.fullmatch(piece) else piece.replace(SPACE, " ") for piece in pieces]
        if self.cleaning is not None:
            texts = [self.cleaning.clean(text)[0] for text in texts]
        spelt = (np.array(ids, np.int32) for ids in processor_of(proto).encode(texts, out_type=int))
        return [ids[ids != self.token_ids.unk] for ids in spelt]

    def save(
        self, directory: str | os.PathLike[str], *, model_max_length: int | None = None, before: Sequence[str] | None = None
    ) -> None:
        """Write spiece.model (which seqio and sentencepiece read) and Hugging Face's files, see `Vocabulary.save`."""
        from bertfam.data.vocabularies.sentence_piece.huggingface_tokenizer import make_tokenizer, warn_of_other_splits

        layout = self.layout if before is None else self.layout.for_continuation(before)
        sentinels = [self._pieces[id] for id in self.token_ids.sentinels]
        proto = parse(self.model)
        tokenizer = make_tokenizer(proto, layout, self._ids, sentinels, self.cleaning)
        warn_of_other_splits(proto, layout, tokenizer, self.encode_batch)
        write_files(
            to_path(directory),
            layout,
            own={"spiece.model": self.model},
            tokenizer_json=tokenizer.to_str(pretty=True),
            tokenizer_class=GENERIC_CLASS,
            settings={} if self.cleaning is None else self.cleaning.settings(),
            model_max_length=model_max_length,
        )

    def _encoding(self, rows: Iterable[tuple[int, int, int]]) -> Encoding:
        table = np.array(list(rows), np.int32).reshape(-1, 3)
        return Encoding(table[:, 0], self.pieces(table[:, 0]), table[:, 1:])

    def _split(
        self, processor: SentencePieceProcessor, text: str, untouched: re.Pattern[str] | None = None
    ) -> list[tuple[int, int, int]]:
        """Split a text; return id, start and end in the text of each piece."""
        text = check_text(text, "text")
        cleaned, spans = (text, None) if self.cleaning is None else self.cleaning.clean(text, untouched)
        pieces = processor.encode(cleaned, out_type="immutable_proto").pieces
        rows = [(piece.id, piece.begin, piece.end) for piece in pieces]
        if spans is None:
            return rows
        return [(id, int(spans[begin, 0]), int(spans[end - 1, 1] if end > begin else spans[begin, 0])) for id, begin, end in rows]

    def _prompt_processor(self, proto: ModelProto) -> tuple[SentencePieceProcessor, np.ndarray, np.ndarray]:
        """Create a processor that recognises control pieces in text.

        A piece cannot exist both with and without the space before it, so each control piece has a second id after the ids of the
        vocabulary.

        Returns:
          the processor; the vocabulary's id for each of its ids; its id for decoding each id of the vocabulary.
        """
        prompts = ModelProto()
        prompts.CopyFrom(proto)
        unknown, special, sentinels = self.token_ids.unk, self.token_ids.special, self.token_ids.sentinels
        prompts.pieces[unknown].piece = prompts.trainer_spec.unk_piece = "\x00unknown"  # the typed name is ordinary text
        for id in special:
            if id != unknown:
                prompts.pieces[id].type = USER_DEFINED
        seconds = [*((id, SPACE) for id in special), *((id, "") for id in sentinels), (unknown, "")]
        for piece in [
            *(SPACE + self._pieces[id] for id in reversed(sentinels)),  # in seqio's order
            *(space + self._pieces[id] for id, space in seconds),
        ]:
            prompts.pieces.add(piece=piece, type=USER_DEFINED)
        same = np.array([*range(self.size), *(id for id, _ in seconds)], np.int32)
        shown = np.arange(self.size)
        for place, (id, space) in enumerate(seconds):
            if space and id != unknown:
                shown[id] = self.size + place
        return processor_of(prompts), same, shown
