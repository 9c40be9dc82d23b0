"""What every vocabulary does, whatever its kind."""

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
    """An encoded text.

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
    """Text <-> ids. A vocabulary has two encoders over the same pieces: running text, and prompts.

    Running text gives no control ids: a typed "[MASK]" is ordinary text. In prompts it is the control token.
    """

    @property
    def size(self) -> int:
        """Real ids are 0 .. size - 1."""

    @property
    def token_ids(self) -> TokenIds:
        """What rows and noise must know of the vocabulary."""

    @property
    def joint(self) -> str:
        """What is put before each sentence of a document but the first, so that its first word is spelt as inside a text."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides ids."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of running texts, int32[length] each; no control ids, and no frame added."""

    def encode(self, text: str) -> Encoding:
        """One running text, with pieces and offsets."""

    def encode_prompt(self, text: str, *, frame: bool = True) -> Encoding:
        """One text in which a control piece that is spelt exactly is the control token.

        Args:
          text: the text.
          frame: whether the tokens are added that models expect around one text, such as [CLS] and [SEP].
        """

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of ids.

        Args:
          ids: any ids below `size`.
          skip_special: leave the special pieces out.
        """

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id."""

    def respell(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """How this vocabulary spells ordinary pieces of another one of its kind, where they stand in text: int32[n] each.

        A piece inside a word is spelt as inside a word. There are no control ids and no unknown: what cannot be spelt has none.
        """

    def save(
        self, directory: str | os.PathLike[str], *, model_max_length: int | None = None, before: Sequence[str] | None = None
    ) -> None:
        """Writes the vocabulary's files into a folder; `transformers.AutoTokenizer.from_pretrained` gives the same ids.

        Args:
          directory: made if need be; other files in it are left alone. Each file is complete or absent.
          model_max_length: longest input of the model, in tokens; None: not stated.
          before: control pieces that tokenizer.json puts before a text, with none behind it, for models that go on from texts;
            None: the frame of the layout.
        """
