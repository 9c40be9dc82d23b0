"""SentencePiece vocabularies, unigram and BPE; the `sentencepiece` library is the truth for ids and offsets."""

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

from bertfam.data.vocabularies.huggingface_files import GENERIC_CLASS, read_config, write_files
from bertfam.data.vocabularies.layouts import LAYOUTS, Layout, find_layout, sentinel_pieces
from bertfam.data.vocabularies.pieces import Pieces, is_ideograph
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
from bertfam.data.vocabularies.sentence_piece.tokenizer_json import model_of
from bertfam.data.vocabularies.sentence_piece.training import count_words, learn_model
from bertfam.data.vocabularies.vocabulary import Encoding
from bertfam.errors import UserError
from bertfam.storage.files import read_json
from bertfam.storage.paths import to_path

SPACE = "▁"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_NAMES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")


class SentencePiece(Pieces):
    """Text as one stream, a space shown as ▁; a model file knows how to normalise and split.

    The sentinels <extra_id_N> lie behind the pieces of the model file, as in T5 and seqio. In a prompt a control piece takes
    the one space before it and invents none after it.

    Attributes:
      joint: "", because each text begins as if a space stood before it.
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
        """A vocabulary of a model file.

        Args:
          model: the file's bytes.
          layout: the control pieces; None: those that the model has.
          sentinels: how many <extra_id_N> follow; None: as the layout says, unless the model holds them.
          cleaning: what is done to text before the model sees it.

        Raises:
          UserError: it is no SentencePiece model, or lacks the layout's pieces.
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
        self.token_ids.starts_word[self.token_ids.unk] = False  # it may stand for a part of a word
        self.model, self.cleaning = model, cleaning
        self._running = processor_of(running_model(proto, self.token_ids.special))
        self._prompts, self._same, self._shown = self._prompt_processor(proto)
        controls_first = sorted(self.pieces([*self.token_ids.special, *self.token_ids.sentinels]), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, controls_first)))

    @classmethod
    def train(cls, texts: Iterable[str], **settings: Any) -> "SentencePiece":
        """Learns pieces from texts; equal texts in any order give equal vocabularies, in every process.

        Args:
          texts: running text, read once.
          settings: see `from_words`.
        """
        return cls.from_words(count_words(texts), **settings)

    @classmethod
    def from_words(
        cls, words: Counter[str], *, kind: str = "unigram", layout: Layout = LAYOUTS["albert"], **settings: Any
    ) -> "SentencePiece":
        """Learns pieces from what `count_words` has counted.

        Args:
          words: how often each stands in the text.
          kind: "unigram" or "bpe".
          layout: the control pieces.
          settings: see `learn_model`.
        """
        return cls(learn_model(words, kind=kind, layout=layout, **settings), layout=layout)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "SentencePiece":
        """Reads a folder that holds spiece.model or one other *.model, or a tokenizer.json that was made from one.

        tokenizer_config.json beside it may state `extra_ids`, the number of sentinels.

        ALBERT's and XLNet's own files (told by tokenizer_class there, or model_type in config.json) mean that text is cleaned
        first, see `Cleaning`.

        Raises:
          UserError: it is no SentencePiece model.
        """
        folder = to_path(directory)
        stated, config = read_config(folder), folder / "config.json"
        cleaning = stated_cleaning(stated, read_json(config) if config.exists() else {})
        sentinels: int | None = stated.get("extra_ids")
        found = sorted(path.name for path in folder.glob("*.model"))
        if not found:
            path = folder / "tokenizer.json"
            model, sentinels = model_of(path, cleaning)
        else:
            name = next((name for name in _NAMES if name in found), found[0] if len(found) == 1 else None)
            if name is None:
                raise UserError(f"{folder} holds {' and '.join(found)}: leave one of them, as spiece.model")
            path = folder / name
            model = path.read_bytes()
        try:
            return cls(model, sentinels=sentinels, cleaning=cleaning)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides ids."""
        cleaning = None if self.cleaning is None else self.cleaning.settings()
        settings = [len(self.token_ids.sentinels), hashlib.sha256(self.model).hexdigest(), cleaning]
        return hashlib.sha256(json.dumps(["sentencepiece", settings, self._pieces]).encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of running texts, int32[length] each; no control ids, and no frame added."""
        cleaned = list(texts) if self.cleaning is None else [self.cleaning.clean(text)[0] for text in texts]
        return [np.array(ids, np.int32) for ids in self._running.encode(cleaned, out_type=int)]

    def encode(self, text: str) -> Encoding:
        """One running text, with pieces and offsets; a piece that begins with ▁ covers the space before its word."""
        return self._encoding(self._split(self._running, text))

    def encode_prompt(self, text: str, *, frame: bool = True) -> Encoding:
        """One text in which a control piece that is spelt exactly is the control token, in the layout's frame."""
        split = self._split(self._prompts, text, self._controls)
        rows = [(int(self._same[id]), begin, end) for id, begin, end in split]
        if frame:
            before, after = ([(self._ids[piece], 0, 0) for piece in pieces] for pieces in self.layout.frame)
            rows = [*before, *rows, *after]
        return self._encoding(rows)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of ids, control pieces set off by spaces; with `skip_special` without control tokens and unknowns."""
        kept = [self._check(id) for id in ids]
        if skip_special:
            special = {*self.token_ids.special, *self.token_ids.sentinels}
            kept = [id for id in kept if id not in special]
        return self._prompts.decode([int(self._shown[id]) for id in kept])

    def respell(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """See `Vocabulary.respell`; pieces that stand for a byte have none."""
        proto = running_model(parse(self.model), self.token_ids.special)
        # A space stands only where the piece has one.
        proto.normalizer_spec.add_dummy_prefix = proto.normalizer_spec.remove_extra_whitespaces = False
        texts = ["" if _BYTE.fullmatch(piece) else piece.replace(SPACE, " ") for piece in pieces]
        if self.cleaning is not None:
            texts = [self.cleaning.clean(text)[0] for text in texts]
        spelt = (np.array(ids, np.int32) for ids in processor_of(proto).encode(texts, out_type=int))
        return [ids[ids != self.token_ids.unk] for ids in spelt]

    def save(
        self, directory: str | os.PathLike[str], *, model_max_length: int | None = None, before: Sequence[str] | None = None
    ) -> None:
        """Writes spiece.model (which seqio and sentencepiece read) and Hugging Face's files, see `Vocabulary.save`."""
        from bertfam.data.vocabularies.sentence_piece.huggingface_tokenizer import make_tokenizer

        layout = self.layout if before is None else self.layout.going_on(before)
        sentinels = [self._pieces[id] for id in self.token_ids.sentinels]
        write_files(
            to_path(directory),
            layout,
            own={"spiece.model": self.model},
            tokenizer_json=make_tokenizer(parse(self.model), layout, self._ids, sentinels, self.cleaning).to_str(pretty=True),
            tokenizer_class=GENERIC_CLASS,
            settings={} if self.cleaning is None else self.cleaning.settings(),
            sentinels=len(sentinels),
            model_max_length=model_max_length,
        )

    def _encoding(self, rows: Iterable[tuple[int, int, int]]) -> Encoding:
        table = np.array(list(rows), np.int32).reshape(-1, 3)
        return Encoding(table[:, 0], self.pieces(table[:, 0]), table[:, 1:])

    def _split(
        self, processor: SentencePieceProcessor, text: str, untouched: re.Pattern[str] | None = None
    ) -> list[tuple[int, int, int]]:
        """Id, begin and end in the text of each piece."""
        cleaned, spans = (text, None) if self.cleaning is None else self.cleaning.clean(text, untouched)
        found = processor.encode(cleaned, out_type="immutable_proto").pieces
        rows = [(piece.id, piece.begin, piece.end) for piece in found]
        if spans is None:
            return rows
        return [(id, int(spans[begin, 0]), int(spans[end - 1, 1] if end > begin else spans[begin, 0])) for id, begin, end in rows]

    def _prompt_processor(self, proto: ModelProto) -> tuple[SentencePieceProcessor, np.ndarray, np.ndarray]:
        """A processor that finds control pieces in text; our id of each of its own; its id for showing each of ours.

        A piece cannot be both with and without the space before it, so each control piece has a second id behind ours.
        """
        prompts = ModelProto()
        prompts.CopyFrom(proto)
        unknown, special, sentinels = self.token_ids.unk, self.token_ids.special, self.token_ids.sentinels
        prompts.pieces[unknown].piece = prompts.trainer_spec.unk_piece = "\x00unknown"  # its name is for what is typed
        for id in special:
            if id != unknown:
                prompts.pieces[id].type = USER_DEFINED
        seconds = [*((id, SPACE) for id in special), *((id, "") for id in sentinels), (unknown, "")]
        for piece in [
            *(SPACE + self._pieces[id] for id in reversed(sentinels)),  # as seqio has them
            *(space + self._pieces[id] for id, space in seconds),
        ]:
            prompts.pieces.add(piece=piece, type=USER_DEFINED)
        same = np.array([*range(self.size), *(id for id, _ in seconds)], np.int32)
        shown = np.arange(self.size)
        for place, (id, space) in enumerate(seconds):
            if space and id != unknown:
                shown[id] = self.size + place
        return processor_of(prompts), same, shown
