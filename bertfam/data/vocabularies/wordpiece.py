"""WordPiece vocabularies: trained, loaded, saved, and the text <-> ids that they define.

The `tokenizers` library is the truth for pieces, ids and offsets. A vocabulary has two encoders over the same pieces:
running text, where a typed "[MASK]" is ordinary text and no control id ever comes out, and prompts, where it is the
control token.
"""

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Encoding as TokenizersEncoding
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece as WordPieceModel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from bertfam.corruption.token_ids import TokenIds
from bertfam.data.vocabularies.vocabulary import Encoding
from bertfam.data.vocabularies.wordpiece_files import read_settings, read_vocab_txt, write_vocabulary
from bertfam.data.vocabularies.wordpiece_training import MAX_WORD_CHARACTERS, count_words, learn_pieces
from bertfam.errors import UserError

PAD, UNK, CLS, SEP, MASK = SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class WordPiece:
    """BERT's vocabulary: normalise, split at white space and punctuation, then the longest piece first.

    An uncased vocabulary decomposes characters (NFD) and drops accents, as BERT is defined: か and が become one. For
    languages where that loses letters (Japanese, Hindi, Vietnamese), use lowercase=False or strip_accents=False.

    Attributes:
      size: real ids are 0 .. size - 1.
      token_ids: ids of the special pieces, and which pieces begin a word.
      joint: "", because a space is no part of any piece.
      fingerprint: SHA-256 of everything that decides ids.
    """

    def __init__(
        self,
        pieces: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        handle_chinese_chars: bool = True,
    ) -> None:
        """A vocabulary of `pieces` in the order of their ids.

        Args:
          pieces: all of `SPECIAL_PIECES` anywhere, words as they are, and continuations as "##ing".
          lowercase: whether text is lower-cased.
          strip_accents: whether accents are dropped; None: if and only if `lowercase`.
          handle_chinese_chars: whether each CJK ideograph is a word.

        Raises:
          UserError: a special piece is missing, or a piece stands twice.
        """
        ids = {piece: id for id, piece in enumerate(pieces)}
        missing = [piece for piece in SPECIAL_PIECES if piece not in ids]
        if missing:
            raise UserError(f"the vocabulary has no {' '.join(missing)}: BERT needs all of {' '.join(SPECIAL_PIECES)}")
        if len(ids) != len(pieces):
            twice = next(piece for id, piece in enumerate(pieces) if ids[piece] != id)
            raise UserError(f"the vocabulary holds {twice!r} twice: each piece must have one id")
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.handle_chinese_chars = handle_chinese_chars
        self.size = len(pieces)
        self.joint = ""
        self._pieces = list(pieces)
        pad, unk, cls, sep, mask = (ids[piece] for piece in SPECIAL_PIECES)
        self.token_ids = TokenIds(
            size=self.size,
            pad=pad,
            unk=unk,
            cls=cls,
            sep=sep,
            mask=mask,
            special=tuple(sorted((pad, unk, cls, sep, mask))),
            starts_word=np.array([not piece.startswith("##") for piece in pieces]),
        )
        self._prompts = self._tokenizer(ids)
        self._running = self._tokenizer(ids)
        self._running.encode_special_tokens = True  # typed special pieces are ordinary text

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        size: int,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        handle_chinese_chars: bool = True,
        min_frequency: int = 2,
    ) -> "WordPiece":
        """Learns pieces from texts; equal texts in any order give equal vocabularies, in every process.

        Continuations (##ing) are learnt from the same words that the encoder sees: normalised and split alike.
        Warns (`UserWarning`) when the texts allow fewer than `size` pieces, which gives a smaller vocabulary.

        Args:
          texts: running text, read once.
          size: pieces wanted, the five special ones included.
          lowercase, strip_accents, handle_chinese_chars: see `WordPiece`.
          min_frequency: how often two pieces must stand side by side to be joined.

        Raises:
          UserError: there is no text, or `size` or `min_frequency` is out of range.
        """
        words = count_words(texts, make_normalizer(lowercase, strip_accents, handle_chinese_chars))
        return cls.from_words(
            words,
            size=size,
            lowercase=lowercase,
            strip_accents=strip_accents,
            handle_chinese_chars=handle_chinese_chars,
            min_frequency=min_frequency,
        )

    @classmethod
    def from_words(
        cls,
        words: Counter[str],
        *,
        size: int,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        handle_chinese_chars: bool = True,
        min_frequency: int = 2,
    ) -> "WordPiece":
        """`train` on words that `count_words` has counted with the normaliser of the same settings."""
        pieces = learn_pieces(words, SPECIAL_PIECES, size=size, min_frequency=min_frequency)
        return cls(pieces, lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=handle_chinese_chars)

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        lowercase: bool | None = None,
        strip_accents: bool | None = None,
        handle_chinese_chars: bool | None = None,
    ) -> "WordPiece":
        """Reads a folder that holds vocab.txt or tokenizer.json, as published with every BERT.

        Args:
          directory: the folder.
          lowercase, strip_accents, handle_chinese_chars: override what the folder says; None: as it says.

        Raises:
          UserError: it is no WordPiece vocabulary, or nothing says whether it is cased.
        """
        folder = Path(directory)
        given = {
            "lowercase": lowercase,
            "strip_accents": strip_accents,
            "handle_chinese_chars": handle_chinese_chars,
        }
        pieces, settings = read_settings(folder)
        settings |= {name: value for name, value in given.items() if value is not None}
        if pieces is None:
            pieces = read_vocab_txt(folder / "vocab.txt")
        if "lowercase" not in settings:
            cased = next((p for p in pieces if p not in SPECIAL_PIECES and p != p.lower() and p[:1] != "["), None)
            if cased:
                raise UserError(
                    f"{folder}: vocab.txt holds {cased!r} but nothing says whether text is lower-cased: put "
                    '{"do_lower_case": false} into tokenizer_config.json beside it'
                )
        try:
            return cls(pieces, **settings)
        except UserError as error:
            raise UserError(f"{folder}: {error}") from error

    def save(self, directory: str | os.PathLike[str], *, model_max_length: int | None = None) -> None:
        """Writes tokenizer.json, vocab.txt, tokenizer_config.json and special_tokens_map.json into a folder.

        Each file is complete or absent. `transformers.AutoTokenizer.from_pretrained(directory)` gives the same ids.

        Args:
          directory: made if need be; other files in it are left alone.
          model_max_length: longest input of the model, in tokens; None: not stated.
        """
        write_vocabulary(
            Path(directory),
            self._pieces,
            self._prompts.to_str(pretty=True),
            lowercase=self.lowercase,
            strip_accents=self.strip_accents,
            handle_chinese_chars=self.handle_chinese_chars,
            model_max_length=model_max_length,
        )

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of running texts, int32[length] each; no special piece but [UNK], and no [CLS] or [SEP] added."""
        encodings = self._running.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode(self, text: str) -> Encoding:
        """One running text, with pieces and offsets."""
        return _encoding(self._running.encode(text, add_special_tokens=False))

    def encode_prompt(self, text: str) -> Encoding:
        """One text in which "[MASK]" (or another special piece, spelt exactly so) is the control token, as [CLS] x [SEP]."""
        return _encoding(self._prompts.encode(text))

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of ids: continuations joined, spaces before punctuation closed.

        Args:
          ids: any ids below `size`.
          skip_special: leave [PAD], [CLS], [SEP], [MASK] and [UNK] out.
        """
        checked = [self._check(id) for id in ids]
        return self._prompts.decode(checked, skip_special_tokens=skip_special)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id."""
        return [self._pieces[self._check(id)] for id in ids]

    @functools.cached_property
    def fingerprint(self) -> str:
        settings = [self.lowercase, self.effective_strip_accents, self.handle_chinese_chars, MAX_WORD_CHARACTERS]
        return hashlib.sha256(json.dumps([settings, self._pieces]).encode()).hexdigest()

    @property
    def effective_strip_accents(self) -> bool:
        """`strip_accents`, with None resolved."""
        return self.lowercase if self.strip_accents is None else self.strip_accents

    def _tokenizer(self, ids: dict[str, int]) -> Tokenizer:
        tokenizer = Tokenizer(WordPieceModel(ids, unk_token=UNK, max_input_chars_per_word=MAX_WORD_CHARACTERS))
        tokenizer.normalizer = make_normalizer(self.lowercase, self.strip_accents, self.handle_chinese_chars)
        tokenizer.pre_tokenizer = BertPreTokenizer()
        tokenizer.post_processor = TemplateProcessing(
            single=f"{CLS}:0 $A:0 {SEP}:0",
            pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
            special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
        )
        tokenizer.decoder = WordPieceDecoder(prefix="##")
        tokenizer.add_special_tokens(list(SPECIAL_PIECES))
        return tokenizer

    def _check(self, id: int) -> int:
        if not 0 <= id < self.size:
            raise ValueError(f"id {id} is outside the vocabulary of {self.size} pieces")
        return int(id)


def _encoding(found: TokenizersEncoding) -> Encoding:
    return Encoding(np.array(found.ids, np.int32), found.tokens, np.array(found.offsets, np.int32).reshape(-1, 2))


def make_normalizer(lowercase: bool, strip_accents: bool | None, handle_chinese_chars: bool) -> BertNormalizer:
    """What BERT does to text before splitting it: control characters out, CJK apart, accents out, lower case."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=handle_chinese_chars,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
