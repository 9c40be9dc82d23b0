"""Rows of prompts with completions, for causal LMs: the loss is that of the completion alone.

A row is `prompt completion </s>`, and the target at each position is the next token. Targets of the prompt have weight 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import TextCorruption
from bertfam.corruption.decoder_rows import start_id
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import PairLayout
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError
from bertfam.features import Start


@dataclass(frozen=True)
class Completions(PairLayout):
    """Layout of prompts with completions, one pair a row.

    The beginning of a prompt that is too long is cut off, and so is the end of a completion, which keeps its end-of-text token.

    Attributes:
      target_tokens: Largest number of tokens of a completion, its end-of-text token included. The rest of a row is for prompts,
        so that a prompt is the same whatever completes it.
      start: Token that every prompt begins with; None: prompts are read as they are.
    """

    target_tokens: int = 128
    start: Start | None = None

    def __post_init__(self) -> None:
        if self.target_tokens < 2:
            raise UserError(f"Completions.target_tokens is {self.target_tokens} (--target_length): it must be at least 2")

    @property
    @override
    def cut_part(self) -> str:
        return "beginnings"

    @override
    def check(self, noise: TextCorruption, name: str) -> None:
        if not noise.form.continued:
            raise UserError(
                f"{name}: Completions are rows of a causal LM, and {type(noise).__name__} makes others: set TextData.corruption "
                "= @NextTokens(), or TextData.pairs = @TextPairs() for an encoder-decoder"
            )

    @override
    def target_length(self, noise: TextCorruption, length: int) -> int:
        return self.target_tokens

    @override
    def plan(self, documents: Documents, noise: TextCorruption, length: int, seed: int, tokens: TokenIds) -> "CompletionExamples":
        return CompletionExamples(self, documents, length, tokens)

    @override
    def prompts(self, rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        # The first target with weight is predicted from the last token of the prompt.
        lengths = 1 + np.argmax(rows["decoder_loss_weights"] > 0, axis=1)
        return [tokens[:length] for tokens, length in zip(rows["decoder_input_tokens"], lengths, strict=True)]


class CompletionExamples:
    """Rows of one corpus of pairs at one length."""

    def __init__(self, layout: Completions, documents: Documents, length: int, tokens: TokenIds) -> None:
        """Create rows of `length` positions."""
        assert documents.pairs
        self._documents, self._length, self._pad = documents, length, tokens.pad
        self._end = tokens.end_of_text("a completion")
        self._start = self._end if layout.start is None else start_id(layout.start, tokens, "a prompt")
        room = length - layout.target_tokens - (layout.start is not None)
        if room < 1:
            raise UserError(
                f"rows of {length} tokens have no room for prompts beside completions of {layout.target_tokens}: raise "
                "Stage.length (--length), or lower Completions.target_tokens (--target_length)"
            )
        self._lengths = np.diff(documents.sentence_starts).reshape(-1, 2)  # tokens of prompts and completions
        self._kept = np.minimum(self._lengths, np.array([room, layout.target_tokens - 1]))
        # An empty prompt begins as the text after an end-of-text token does.
        self._lead = ((layout.start is not None) | (self._lengths[:, 0] == 0)).astype(np.int64)
        self.cut, self.warnings = self._warnings(room, layout.target_tokens)

    def __len__(self) -> int:
        return len(self._documents)

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build finished rows, without random draws.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], unused.

        Returns:
          `decoder_input_tokens`, `decoder_target_tokens`, `decoder_segment_ids` int32[n, length], `decoder_loss_weights`
          float32[n, length], 1 at tokens of the completion and its end; and `encoder_segment_ids`, those of the only network.
        """
        starts, sizes, kept = self._documents.sentence_starts, self._lengths[examples], self._kept[examples]
        lead = self._lead[examples]
        # Places in a sequence of length + 1 tokens, of which all but the last are inputs and all but the first are targets.
        place, begin = np.arange(self._length + 1), (lead + kept[:, 0])[:, None]
        end = begin + kept[:, 1, None]
        prompt_source = starts[2 * examples] + sizes[:, 0] - begin[:, 0]  # of place 0
        source = place + np.where(place < begin, prompt_source[:, None], starts[2 * examples + 1, None] - begin)
        sequence = self._documents.tokens.take(source, mode="clip").astype(np.int32)
        sequence = np.where(place < lead[:, None], self._start, sequence)
        sequence = np.where(place == end, self._end, np.where(place > end, self._pad, sequence)).astype(np.int32)
        target = place[1:]
        real = (target <= end).astype(np.int32)
        return {
            "decoder_input_tokens": np.where(real > 0, sequence[:, :-1], np.int32(self._pad)),
            "decoder_target_tokens": sequence[:, 1:],
            "decoder_segment_ids": real,
            "decoder_loss_weights": ((target >= begin) & (target <= end)).astype(np.float32),
            "encoder_segment_ids": real,
        }

    def _warnings(self, room: int, target_tokens: int) -> tuple[int, list[str]]:
        """Return the number of prompts that are cut, and warnings."""
        prompts, completions = (self._lengths > self._kept).sum(axis=0).tolist()
        name, count = self._documents.name, len(self)
        lines = []
        if prompts:
            lines.append(
                f"{prompts:,} of the {count:,} prompts of {name} have more than {room} tokens, and their beginnings are cut off: "
                "raise Stage.length (--length) to keep them whole"
            )
        if completions:
            lines.append(
                f"{completions:,} of the {count:,} completions of {name} have more than {target_tokens - 1} tokens, and their "
                "ends are cut off: raise Completions.target_tokens (--target_length) to keep them whole"
            )
        return prompts, lines
