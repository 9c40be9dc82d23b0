"""Interface of vocabularies of every kind."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from bertfam.corruption.token_ids import TokenIds


@dataclass(frozen=True)
class Encoding:
    """Encoded text.

    Attributes:
      ids: int32[length].
      pieces: the `length` pieces as text.
      offsets: int32[length, 2], start and end of each piece in characters of the original text; (0, 0) for the pieces of the
        frame that `Vocabulary.encode_prompt` adds.
    """

    ids: np.ndarray
    pieces: list[str]
    offsets: np.ndarray


class Vocabulary(Protocol):
    """Map between text and ids, with two encoders over the same pieces: running text, and prompts.

    Running text never gives control ids: a typed "[MASK]" is ordinary text. In prompts it is the control token. What is no text,
    no list of texts or no id is refused by a UserError.
    """

    @property
    def size(self) -> int:
        """Number of pieces; ids are 0 .. size - 1."""

    @property
    def token_ids(self) -> TokenIds:
        """Token ids and word boundaries for rows and noise."""

    @property
    def joint(self) -> str:
        """Text inserted before each sentence of a document but the first, so that its first word is encoded as inside a text."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the ids."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode running texts, int32[length] each, without control ids and frame."""

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode running texts as `encode_batch` does: all ids int32[tokens], and the number of each text's int64[texts]."""

    def encode(self, text: str) -> Encoding:
        """Encode one running text, with pieces and offsets."""

    def encode_prompt(self, text: str, *, frame: bool = True) -> Encoding:
        """Encode one text in which an exactly typed control piece is the control token.

        Args:
          text: the text.
          frame: whether to add the tokens that models expect around one text, such as [CLS] and [SEP].
        """

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Decode ids to text.

        Args:
          ids: any ids below `size`.
          skip_special: whether to leave out the special pieces.
        """

    def occurs(self, id: int) -> bool:
        """Return whether rows of text hold an id besides their padding; any id does where rows are padded on the left."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id."""

    def respell(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """Encode ordinary pieces of another vocabulary of the same kind as they occur in text: int32[n] each.

        A piece that continues a word is encoded as a continuation. The result has no control ids and no unknowns: it is empty
        for a piece that cannot be encoded.
        """

    def save(
        self, directory: str | os.PathLike[str], *, model_max_length: int | None = None, before: Sequence[str] | None = None
    ) -> None:
        """Write the vocabulary to a folder from which `transformers.AutoTokenizer.from_pretrained` gives the same ids.

        Args:
          directory: created if missing; other files in it are left alone. Each file is written atomically.
          model_max_length: longest input of the model in tokens; None leaves it out.
          before: control pieces that tokenizer.json puts before a text, with nothing after it, for models that continue texts;
            None uses the frame of the layout.
        """
