"""WordPiece vocabularies as in BERT; the `tokenizers` library defines pieces, ids and offsets."""

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece as WordPieceModel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from typing_extensions import override

from bertfam.data.vocabularies.added_pieces import AddedPiece, model_pieces, with_stated
from bertfam.data.vocabularies.huggingface_files import (
    GENERIC_CLASS,
    read_config,
    read_tokenizer,
    warn_of_clash,
    warn_of_ignored,
    warn_once_in_parent,
)
from bertfam.data.vocabularies.layouts import LAYOUTS, Layout, find_layout, sentinel_pieces, trailing_sentinels
from bertfam.data.vocabularies.pieces import checked_texts
from bertfam.data.vocabularies.tokenizers_vocabulary import TokenizersVocabulary
from bertfam.data.vocabularies.word_table import WordTable
from bertfam.data.vocabularies.wordpiece_training import MAX_WORD_CHARACTERS, count_words, frequent_words, learn_pieces
from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.storage.paths import to_path
from bertfam.storage.untrusted import read_text, shown, typed

BERT = LAYOUTS["bert"]
SPECIAL_PIECES = BERT.controls

_INSIDE = "##"  # prefix of a piece that continues a word

# name of each option in tokenizer_config.json -> name here
_CONFIG_NAMES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


class WordPiece(TokenizersVocabulary):
    """WordPiece vocabulary: normalise, split at white space and punctuation, then match the longest piece first.

    An uncased vocabulary decomposes characters (NFD) and drops accents, as BERT does: か and が become equal. For languages where
    that loses letters (Japanese, Hindi, Vietnamese), use lowercase=False or strip_accents=False.

    Attributes:
      joint: "", because no piece contains a space.
    """

    mask_takes_space = False
    joint = ""

    def __init__(
        self,
        pieces: Sequence[str],
        *,
        layout: Layout = BERT,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        handle_chinese_chars: bool = True,
        added: Sequence[AddedPiece] = (),
    ) -> None:
        """Create a vocabulary of `pieces` in the order of their ids.

        Args:
          pieces: the layout's control pieces at any ids, words as they are, and continuations as "##ing".
          layout: the control pieces.
          lowercase: whether to lower-case text.
          strip_accents: whether to drop accents; None means the value of `lowercase`.
          handle_chinese_chars: whether to treat each CJK ideograph as a word.
          added: added tokens among the pieces.

        Raises:
          UserError: a control piece is missing, or a piece occurs twice.
        """
        if layout.unk == layout.pad:
            raise UserError(f"WordPiece needs a piece for unknown text, and the layout of {layout.pad} has none: choose another")
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.handle_chinese_chars = handle_chinese_chars
        starts_word = np.array([not piece.startswith("##") for piece in pieces], bool)
        super().__init__(pieces, layout, starts_word, sentinels=trailing_sentinels(pieces), added=added)

    @classmethod
    def train(cls, texts: Iterable[str], **settings: Any) -> "WordPiece":
        """Learn pieces from texts; equal texts in any order give equal vocabularies in every process.

        Continuations (##ing) are learned from the words that the encoder sees, normalised and split in the same way.

        Args:
          texts: running text, read once.
          settings: see `from_words`.
        """
        names = ("lowercase", "strip_accents", "handle_chinese_chars")
        normalizer = make_normalizer(**{name: settings[name] for name in names if name in settings})
        return cls.from_words(count_words(texts, normalizer), **settings)

    @classmethod
    def from_words(
        cls,
        words: Counter[str],
        *,
        size: int,
        layout: Layout = BERT,
        min_frequency: int = 2,
        whole_words: bool = False,
        **switches: Any,
    ) -> "WordPiece":
        """Learn pieces from the counts of `count_words` with the normaliser of the same options.

        Warns (`UserWarning`) if the texts allow fewer than `size` pieces, which gives a smaller vocabulary.

        Args:
          words: the number of occurrences of each word in the text.
          size: number of pieces to learn, including the layout's.
          layout: the control pieces.
          min_frequency: the number of times two pieces must be adjacent to be merged, or that a whole word must occur.
          whole_words: whether the pieces are the most frequent words; every other word is then unknown.
          switches: lowercase, strip_accents, handle_chinese_chars, see `WordPiece`.

        Raises:
          UserError: there is no text, or `size` or `min_frequency` is out of range.
        """
        last = [*layout.last, *sentinel_pieces(layout.sentinels)]
        if whole_words:
            pieces = frequent_words(words, layout.first, last, size=size, min_frequency=min_frequency)
        else:
            pieces = learn_pieces(words, layout.first, last, unknown=layout.unk, size=size, min_frequency=min_frequency)
        return cls(pieces, layout=layout, **switches)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "WordPiece":
        """Load a folder that holds tokenizer.json or vocab.txt, as published with BERT models.

        Warns if it holds both and they differ; tokenizer.json is used.

        Raises:
          UserError: it is not a WordPiece vocabulary, or the folder does not say if it is cased.
        """
        folder = to_path(directory)
        config = read_config(folder)
        if (path := folder / "tokenizer.json").exists():
            pieces, added, switches = _read_tokenizer_json(path)
            warn_of_ignored(folder / "vocab.txt", _read_vocab_txt, model_pieces(pieces, added))
            # Accents are stripped as text is lower-cased where nothing is said about them.
            lowercase, stripped = switches["lowercase"], switches["strip_accents"]
            used = {"do_lower_case": lowercase, "tokenize_chinese_chars": switches["handle_chinese_chars"]}
            if config.get("strip_accents") is not None:
                used["strip_accents"] = lowercase if stripped is None else stripped
            warn_of_clash(folder, config, used)
        else:
            path, added = folder / "vocab.txt", {}
            pieces, where = _read_vocab_txt(path), folder / "tokenizer_config.json"
            stated = {ours: typed(config, theirs, bool, where) for theirs, ours in _CONFIG_NAMES.items()}
            switches = {name: value for name, value in stated.items() if value is not None}
        layout = find_layout(pieces) or BERT
        if "lowercase" not in switches:
            cased = next((p for p in pieces if p not in layout.controls and p != p.lower() and p[:1] != "["), None)
            if cased:
                raise UserError(
                    f"{folder}: vocab.txt holds {cased!r}, but no file says whether text is lower-cased: put "
                    '{"do_lower_case": false} into tokenizer_config.json beside it'
                )
        try:
            if len(set(pieces)) < len(pieces) or not set(layout.controls) <= set(pieces):
                cls(pieces, layout=layout)  # refuses them, where `with_stated` would miss an added token
            return cls(pieces, layout=layout, added=with_stated(folder, config, added, pieces), **switches)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the ids."""
        settings: list[Any] = [self.lowercase, self.effective_strip_accents, self.handle_chinese_chars, MAX_WORD_CHARACTERS]
        settings += self._added_settings()
        return hashlib.sha256(json.dumps([settings, self._pieces]).encode()).hexdigest()

    @property
    def effective_strip_accents(self) -> bool:
        """Value of `strip_accents` with None resolved."""
        return self.lowercase if self.strip_accents is None else self.strip_accents

    @override
    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        # Neither the normaliser nor the splitter looks beyond a space; an added token may have spaces in it.
        return super().encode_flat(texts) if self._added else self._words.encode(checked_texts(texts))

    @functools.cached_property
    def _words(self) -> WordTable:
        return WordTable(self._encode_words)

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._running.encode_batch_fast(words, add_special_tokens=False)]

    @override
    def respell(self, pieces: Sequence[str]) -> list[np.ndarray]:
        # A piece that no continuations spell is encoded as a word.
        words = self.encode_batch([piece.removeprefix(_INSIDE) for piece in pieces])
        normalizer, model = self._running.normalizer, self._running.model
        spellings = []
        for piece, ids in zip(pieces, words, strict=True):
            if piece.startswith(_INSIDE):
                # To the model "##" is ordinary text, so the first piece is a continuation too.
                inside = model.tokenize(_INSIDE + normalizer.normalize_str(piece.removeprefix(_INSIDE)).strip())
                if inside and inside[0].value.startswith(_INSIDE) and inside[0].value != _INSIDE:
                    ids = np.array([token.id for token in inside], np.int32)
            spellings.append(ids[ids != self.token_ids.unk])
        return spellings

    @override
    def _tokenizer(self) -> Tokenizer:
        model = WordPieceModel(self._model_ids, unk_token=self.layout.unk, max_input_chars_per_word=MAX_WORD_CHARACTERS)
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = make_normalizer(self.lowercase, self.strip_accents, self.handle_chinese_chars)
        tokenizer.pre_tokenizer = BertPreTokenizer()
        tokenizer.decoder = WordPieceDecoder(prefix="##")
        return tokenizer

    @override
    def _own_files(self) -> dict[str, bytes]:
        return {"vocab.txt": "".join(piece + "\n" for piece in self._model_ids).encode()}

    @override
    def _published_class(self, layout: Layout) -> str:
        return "BertTokenizer" if layout == BERT else GENERIC_CLASS

    @override
    def _published_settings(self) -> dict[str, Any]:
        return {theirs: getattr(self, ours) for theirs, ours in _CONFIG_NAMES.items()}


def make_normalizer(
    lowercase: bool = True, strip_accents: bool | None = None, handle_chinese_chars: bool = True
) -> BertNormalizer:
    """Create BERT's normaliser: drop control characters, separate CJK ideographs, strip accents, lower-case."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=handle_chinese_chars,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )


def _read_vocab_txt(path: Path) -> list[str]:
    """Read one piece per line, in the order of the ids."""
    pieces = [line.rstrip("\r") for line in read_text(path).removesuffix("\n").split("\n")]
    tabs = [number for number, piece in enumerate(pieces, 1) if "\t" in piece]
    if len(tabs) > len(pieces) // 2:  # control tokens may be without counts
        raise UserError(f"{path}:{tabs[0]}: has a tab: write one piece a line, without counts or other columns (cut -f1)")
    padded = [number for number, piece in enumerate(pieces, 1) if piece != piece.strip(" ")]
    if len(padded) > len(pieces) // 2:
        raise UserError(f"{path}:{padded[0]}: has a space beside the piece: write one piece a line, without spaces around it")
    empty = [number for number, piece in enumerate(pieces, 1) if not piece]
    if len(empty) > 1:
        raise UserError(f"{path}:{empty[0]}: the line is empty, as {plural(len(empty) - 1, 'other')}: write one piece a line")
    if empty:
        warn_once_in_parent(f"{path}:{empty[0]}: the line is empty, and the pieces after it have ids as if it held one")
    return pieces


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[int, AddedPiece], dict[str, Any]]:
    """Read the pieces, the added tokens by id, and the three options."""
    file = read_tokenizer(path)
    for name, step, supported in (
        ("normalizer", file.normalizer, "BertNormalizer"),
        ("pre_tokenizer", file.splitter, "BertPreTokenizer"),
    ):
        if (kind := step.get("type")) != supported:
            found = "no" if kind is None else f"the {shown(kind)} as"
            raise UserError(
                f"{path} does not normalise and split text as BERT does: it has {found} {name}, and only {supported} is supported"
            )
    prefix, longest = (file.model.get(name) for name in ("continuing_subword_prefix", "max_input_chars_per_word"))
    if prefix != _INSIDE or longest != MAX_WORD_CHARACTERS:
        raise UserError(f'{path}: only the continuation prefix "##" and words of up to 100 characters are supported')
    switches = {name: typed(file.normalizer, name, bool, path) for name in _CONFIG_NAMES.values()}
    missing = next((name for name in ("lowercase", "handle_chinese_chars") if switches[name] is None), None)
    if missing:
        raise UserError(f"{path}: the normalizer does not state {missing}")
    return file.pieces, file.added, switches
