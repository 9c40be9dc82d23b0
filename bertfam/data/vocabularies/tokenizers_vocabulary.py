"""Base class of vocabularies that the `tokenizers` library encodes: two encoders, and the files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
from tokenizers import Encoding as TokenizersEncoding
from tokenizers import Tokenizer
from tokenizers.processors import PostProcessor, TemplateProcessing

from bertfam.call_arguments import check_text
from bertfam.data.vocabularies.added_pieces import AddedPiece
from bertfam.data.vocabularies.huggingface_files import write_files
from bertfam.data.vocabularies.layouts import Layout
from bertfam.data.vocabularies.pieces import Pieces, checked_texts, flat
from bertfam.data.vocabularies.vocabulary import Encoding
from bertfam.storage.paths import to_path


class TokenizersVocabulary(Pieces, ABC):
    """`Vocabulary` whose ids and offsets are those of the `tokenizers.Tokenizer` that `_tokenizer` returns."""

    mask_takes_space: ClassVar[bool]  # True if the mask in a prompt absorbs the white space before it

    def __init__(
        self,
        pieces: Sequence[str],
        layout: Layout,
        starts_word: np.ndarray,
        *,
        sentinels: int = 0,
        added: Sequence[AddedPiece] = (),
    ) -> None:
        ids = {piece: id for id, piece in enumerate(pieces)}
        first_sentinel = len(pieces) - sentinels  # sentinels are no special pieces, see `TokenIds`
        specials = [ids[piece.content] for piece in added if piece.special and ids[piece.content] < first_sentinel]
        super().__init__(pieces, layout, starts_word, sentinels=sentinels, more_special=specials)
        own = {*layout.controls, *self.pieces(self.token_ids.sentinels)}
        self._flags = {piece.content: piece for piece in added}
        self._added = [piece for piece in added if piece.content not in own]
        self.token_ids.starts_word[[ids[piece.content] for piece in self._added]] = True
        apart = {piece.content for piece in self._added if piece.apart}
        self._model_ids = {piece: id for piece, id in self._ids.items() if piece not in apart}
        self._prompts = self._with_controls(self._tokenizer(), layout)
        self._running = self._with_controls(self._tokenizer(), layout)
        self._running.encode_special_tokens = True  # typed control pieces are ordinary text

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode running texts, int32[length] each, without control ids and frame."""
        encodings = self._running.encode_batch_fast(checked_texts(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode running texts, without control ids and frame: all ids, and the number of each text's."""
        return flat(self.encode_batch(texts))

    def encode(self, text: str) -> Encoding:
        """Encode one running text, with pieces and offsets."""
        return self._encoding(self._running.encode(check_text(text, "text"), add_special_tokens=False))

    def encode_prompt(self, text: str, *, frame: bool = True) -> Encoding:
        """Encode one text in the layout's frame; an exactly typed control piece becomes the control token."""
        return self._encoding(self._prompts.encode(check_text(text, "text"), add_special_tokens=frame))

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Decode ids to text; `skip_special` leaves out control tokens and unknowns."""
        return self._prompts.decode(self._checked(ids), skip_special_tokens=skip_special)

    def save(
        self, directory: str | os.PathLike[str], *, model_max_length: int | None = None, before: Sequence[str] | None = None
    ) -> None:
        """Write the vocabulary's files and Hugging Face's, see `Vocabulary.save`."""
        layout = self.layout if before is None else self.layout.for_continuation(before)
        write_files(
            to_path(directory),
            layout,
            own=self._own_files(),
            tokenizer_json=self._with_controls(self._tokenizer(), layout).to_str(pretty=True),
            tokenizer_class=self._published_class(layout),
            settings=self._published_settings(),
            model_max_length=model_max_length,
            specials=[piece.content for piece in self._added if piece.special],
        )

    @abstractmethod
    def respell(self, pieces: Sequence[str]) -> list[np.ndarray]:
        """Encode pieces of another vocabulary, see `Vocabulary.respell`."""

    @abstractmethod
    def _tokenizer(self) -> Tokenizer:
        """Return the library's tokenizer, without control tokens and frame."""

    def _post_processor(self, layout: Layout) -> PostProcessor | None:
        """Return the processor that adds the frame to a text; None for an empty frame."""
        before, after = layout.frame
        return template(layout, self._ids) if before or after else None

    @abstractmethod
    def _own_files(self) -> dict[str, bytes]:
        """Return the files specific to the vocabulary's kind, by name."""

    @abstractmethod
    def _published_class(self, layout: Layout) -> str:
        """Return the name of the `transformers` class that reads the folder."""

    @abstractmethod
    def _published_settings(self) -> dict[str, Any]:
        """Return the entries of tokenizer_config.json for that class."""

    def _added_settings(self) -> list[dict[str, Any]]:
        """Return everything about added tokens that determines ids, for the fingerprint; nothing where there are none."""
        return [asdict(piece) for piece in self._added]

    def _encoding(self, encoding: TokenizersEncoding) -> Encoding:
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        return Encoding(np.array(encoding.ids, np.int32), self.pieces(encoding.ids), offsets)

    def _with_controls(self, tokenizer: Tokenizer, layout: Layout) -> Tokenizer:
        if (processor := self._post_processor(layout)) is not None:
            tokenizer.post_processor = processor
        controls = [*self.layout.controls, *(self._pieces[id] for id in self.token_ids.sentinels)]
        for piece in sorted({*controls, *self._flags}, key=self._ids.__getitem__):
            takes_space = self.mask_takes_space and piece == self.layout.mask
            added = self._flags.get(piece) or AddedPiece(piece, special=True, lstrip=takes_space)
            if added.special or piece in controls:
                tokenizer.add_special_tokens([added.token])
            else:
                tokenizer.add_tokens([added.token])
        return tokenizer


def template(layout: Layout, ids: dict[str, int]) -> TemplateProcessing:
    """Return the layout's frames as a `tokenizers` processor."""
    used = {word.split(":")[0] for word in f"{layout.single} {layout.pair}".split() if word[0] != "$"}
    return TemplateProcessing(
        single=layout.single, pair=layout.pair, special_tokens=[(piece, ids[piece]) for piece in sorted(used)]
    )
