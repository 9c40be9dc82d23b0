"""Byte-level BPE vocabularies as in GPT-2 and RoBERTa; the `tokenizers` library defines ids and offsets."""

import functools
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel as ByteLevelSplitter
from tokenizers.processors import ByteLevel as ByteLevelOffsets
from tokenizers.processors import PostProcessor
from tokenizers.processors import Sequence as Processors
from typing_extensions import override

from bertfam.data.vocabularies.added_pieces import AddedPiece, model_pieces, stated_role, with_stated
from bertfam.data.vocabularies.byte_bpe_training import count_chunks, learn_merges
from bertfam.data.vocabularies.huggingface_files import (
    GENERIC_CLASS,
    read_config,
    read_pieces,
    read_tokenizer,
    warn_of_clash,
    warn_of_ignored,
)
from bertfam.data.vocabularies.layouts import LAYOUTS, Layout, find_layout, sentinel_pieces, trailing_sentinels
from bertfam.data.vocabularies.pieces import is_ideograph
from bertfam.data.vocabularies.tokenizers_vocabulary import TokenizersVocabulary
from bertfam.errors import UserError
from bertfam.storage.paths import to_path
from bertfam.storage.untrusted import read_json, read_text, shown, typed

ROBERTA = LAYOUTS["roberta"]
_CLASSES = {"roberta": "RobertaTokenizer", "gpt2": "GPT2Tokenizer"}
# Classes that make their own tokenizer, which does not compose.
_OWN_TOKENIZER = re.compile(r"(Roberta|GPT2|Bart|Longformer|LED|OPT)Tokenizer(Fast)?", re.IGNORECASE)


class ByteBpe(TokenizersVocabulary):
    """Byte-level BPE vocabulary, which encodes every text without unknown pieces and decodes it losslessly.

    A piece shows each byte as one character, and a space as Ġ. The first word of a text has no space before it: see `joint`.

    Attributes:
      joint: " ", so that the first word of a sentence is encoded as it is inside a text.
      add_prefix_space: True if a space is inserted before each text.
      composes: True if text is composed (NFC) first, as in ModernBERT.
    """

    mask_takes_space = True
    has_unknown = False
    joint = " "

    def __init__(
        self,
        pieces: Sequence[str],
        merges: Sequence[tuple[str, str]],
        *,
        layout: Layout = ROBERTA,
        add_prefix_space: bool = False,
        composes: bool = False,
        added: Sequence[AddedPiece] = (),
    ) -> None:
        """Create a vocabulary of `pieces` in the order of their ids.

        Args:
          pieces: the layout's control pieces at any ids, all 256 bytes, and merged pieces.
          merges: the pairs of pieces that are merged, in order of priority.
          layout: the control pieces.
          add_prefix_space: see the class.
          composes: see the class.
          added: added tokens among the pieces.

        Raises:
          UserError: a control piece, a byte or a piece of a merge is missing, or a piece occurs twice.
        """
        self.add_prefix_space, self.composes = add_prefix_space, composes
        self._merges = list(merges)
        present = set(pieces) - {piece.content for piece in added if piece.apart}
        missing = sorted(set(ByteLevelSplitter.alphabet()) - present)
        if missing:
            raise UserError(f"the vocabulary has no piece for {len(missing)} of the 256 bytes, such as {missing[0]!r}")
        broken = next((pair for pair in self._merges if not present.issuperset((*pair, "".join(pair)))), None)
        if broken:
            raise UserError(f"the merge of {broken[0]!r} and {broken[1]!r} needs a piece that is not in the vocabulary")
        starts_word = np.array([_starts_word(piece) for piece in pieces], bool)
        super().__init__(pieces, layout, starts_word, sentinels=trailing_sentinels(pieces), added=added)

    @classmethod
    def train(cls, texts: Iterable[str], **settings: Any) -> "ByteBpe":
        """Learn pieces from texts; equal texts in any order give equal vocabularies in every process.

        Args:
          texts: running text, read once; each sentence but the first of a document begins with `joint`.
          settings: see `from_chunks`.
        """
        return cls.from_chunks(count_chunks(texts), **settings)

    @classmethod
    def from_chunks(cls, chunks: Counter[str], *, size: int, layout: Layout = ROBERTA, min_frequency: int = 2) -> "ByteBpe":
        """Learn pieces from the counts of `count_chunks`.

        Warns (`UserWarning`) if the texts allow fewer than `size` pieces, which gives a smaller vocabulary.

        Args:
          chunks: the number of occurrences of each chunk in the text.
          size: number of pieces to learn, including the layout's and the 256 bytes.
          layout: the control pieces.
          min_frequency: the number of times two pieces must be adjacent to be merged.

        Raises:
          UserError: there is no text, or `size` or `min_frequency` is out of range.
        """
        last = [*layout.last, *sentinel_pieces(layout.sentinels)]
        pieces, merges = learn_merges(chunks, layout.first, last, size=size, min_frequency=min_frequency)
        return cls(pieces, merges, layout=layout)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "ByteBpe":
        """Load a folder that holds tokenizer.json, or vocab.json and merges.txt.

        Warns if it holds both and they differ; tokenizer.json is used.

        Raises:
          UserError: the vocabulary is not byte-level BPE, or its files contradict each other.
        """
        folder = to_path(directory)
        config = read_config(folder)
        if (path := folder / "tokenizer.json").exists():
            pieces, from_file, merges, prefix, composes = _read_tokenizer_json(path)
            warn_of_clash(folder, config, {"add_prefix_space": prefix})
            if composes:
                _check_composing_class(folder, config)
            warn_of_ignored(
                folder / "vocab.json", lambda file: read_pieces(file, read_json(file)), model_pieces(pieces, from_file)
            )
            warn_of_ignored(
                folder / "merges.txt",
                lambda file: [" ".join(pair) for pair in _read_merges(file)],
                [" ".join(pair) for pair in merges],
            )
        else:
            path, from_file, composes = folder / "vocab.json", {}, False
            pieces = read_pieces(path, read_json(path))
            merges = _read_merges(folder / "merges.txt")
            prefix = bool(typed(config, "add_prefix_space", bool, folder / "tokenizer_config.json"))
        if any(piece.endswith("</w>") for piece in pieces) and not set(ByteLevelSplitter.alphabet()).issubset(pieces):
            raise UserError(f"{path} is a BPE of characters with </w> after words, as in GPT: only byte-level BPE is supported")
        layout = find_layout(pieces)
        if layout is None:
            raise UserError(f"{path} has no control tokens such as {' '.join(ROBERTA.controls)} or <|endoftext|>")
        added = with_stated(folder, config, from_file, pieces)
        pad = stated_role(config, "pad")
        if pad not in layout.controls and any(piece.content == pad and piece.special for piece in added):
            layout = replace(layout, pad=str(pad), last=(*layout.last, str(pad)))
        try:
            return cls(pieces, merges, layout=layout, add_prefix_space=prefix, composes=composes, added=added)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the ids."""
        content = ["byte_bpe", self.add_prefix_space, self._pieces, self._merges, *self._added_settings()]
        content += ["NFC"] * self.composes
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @override
    def respell(self, pieces: Sequence[str]) -> list[np.ndarray]:
        alphabet = set(_byte_values())  # a piece may be a part of a character
        spellings = [self._running.model.tokenize(piece) if alphabet.issuperset(piece) else [] for piece in pieces]
        return [np.array([token.id for token in tokens], np.int32) for tokens in spellings]

    @override
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer(BPE(self._model_ids, self._merges))
        tokenizer.pre_tokenizer = ByteLevelSplitter(add_prefix_space=self.add_prefix_space)
        if self.composes:
            tokenizer.normalizer = NFC()
        tokenizer.decoder = ByteLevelDecoder()
        return tokenizer

    @override
    def _post_processor(self, layout: Layout) -> PostProcessor | None:
        offsets = ByteLevelOffsets(add_prefix_space=self.add_prefix_space, trim_offsets=self.layout.trim_offsets)
        frame = super()._post_processor(layout)
        return offsets if frame is None else Processors([offsets, frame])

    @override
    def _own_files(self) -> dict[str, bytes]:
        merges = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in self._merges)
        return {"vocab.json": json.dumps(self._model_ids, ensure_ascii=False).encode(), "merges.txt": merges.encode()}

    @override
    def _published_class(self, layout: Layout) -> str:
        classes = {} if self.composes else _CLASSES
        return next((name for key, name in classes.items() if LAYOUTS[key] == layout), GENERIC_CLASS)

    @override
    def _published_settings(self) -> dict[str, Any]:
        return {"add_prefix_space": self.add_prefix_space}


def _check_composing_class(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise UserError where transformers would not compose text as tokenizer.json does: some classes make their own tokenizer."""
    name, model = str(config.get("tokenizer_class") or ""), folder / "config.json"
    if not name and model.exists():
        name = f"{read_json(model).get('model_type')}Tokenizer"
    if _OWN_TOKENIZER.fullmatch(name):
        raise UserError(
            f"{folder / 'tokenizer.json'} composes text (NFC), and the class {name}, which AutoTokenizer takes, does not from "
            "transformers 5 on: if the model was trained on composed text, set tokenizer_class in tokenizer_config.json to "
            f"{GENERIC_CLASS}; if not, delete the normalizer"
        )


@functools.cache
def _byte_values() -> dict[str, int]:
    """Map GPT-2's character for each byte to the byte: printable Latin-1 maps to itself, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def _starts_word(piece: str) -> bool:
    table = _byte_values()
    if any(character not in table for character in piece):
        return False
    text = bytes(table[character] for character in piece).decode(errors="replace")
    return text[:1].isspace() or is_ideograph(text[:1] or " ")


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """Read merges, one pair per line in order of priority."""
    if not path.exists():
        raise UserError(f"{path} is missing: byte-level BPE needs vocab.json and merges.txt")
    merges = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        line = line.rstrip("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.partition(" ")
        if not space or " " in right:
            raise UserError(f"{path}:{number}: expected two pieces separated by a space, not {line[:40]!r}")
        merges.append((left, right))
    return merges


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[int, AddedPiece], list[tuple[str, str]], bool, bool]:
    """Read pieces, added tokens by id, merges, `add_prefix_space` and `composes`."""
    file = read_tokenizer(path)
    steps = file.normalizer.get("normalizers", [file.normalizer] if file.normalizer else [])
    kinds = [step.get("type") if isinstance(step, dict) else None for step in steps] if isinstance(steps, list) else [None]
    if other := [kind for kind in kinds if kind != "NFC"]:
        raise UserError(f"{path}: the normalizer {shown(other[0])} of a byte-level BPE is not supported, only NFC or none")
    if file.splitter.get("type") != "ByteLevel" or file.splitter.get("use_regex") is False:
        raise UserError(f"{path} does not split text into bytes as GPT-2 does: only the pre_tokenizer ByteLevel is supported")
    unsupported = next(
        (
            name
            for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "ignore_merges")
            if file.model.get(name)
        ),
        None,
    )
    if unsupported:
        raise UserError(f"{path}: a BPE with {unsupported} is not supported")
    merges = []
    for stated in typed(file.model, "merges", list, path) or []:
        pair = stated.split(" ") if isinstance(stated, str) else stated
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(piece, str) for piece in pair)):
            raise UserError(f"{path}: merges holds {shown(stated)}, and each must be two pieces")
        merges.append((pair[0], pair[1]))
    return file.pieces, file.added, merges, bool(typed(file.splitter, "add_prefix_space", bool, path)), bool(kinds)
