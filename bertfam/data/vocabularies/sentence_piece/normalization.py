"""Text cleaning of ALBERT and XLNet before their SentencePiece model, as in Hugging Face's tokenizers."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import normalizers

_OURS = "clean_text_first"  # bertfam's own key in tokenizer_config.json
_QUOTES = ("``", "''")  # both become "
# Hugging Face's class -> its defaults for what tokenizer_config.json leaves out
_DEFAULTS = {
    "AlbertTokenizer": {"do_lower_case": True, "keep_accents": False},
    "XLNetTokenizer": {"do_lower_case": False, "keep_accents": False},
}
_CLASSES = {"albert": "AlbertTokenizer", "xlnet": "XLNetTokenizer"}


@dataclass(frozen=True)
class Cleaning:
    """Cleaning of text: `` and '' become ", accents are dropped (after NFKD), and capitals are folded.

    Attributes:
      lowercase: True if capitals are folded.
      strip_accents: True if characters are decomposed (NFKD) and marks dropped.
    """

    lowercase: bool
    strip_accents: bool

    def clean(self, text: str, untouched: re.Pattern[str] | None = None) -> tuple[str, np.ndarray]:
        """Clean a text and return int32[its new length + 1, 2], the start and end in `text` of each of its characters.

        Args:
          text: the text.
          untouched: matches of this pattern are left as they are.
        """
        kept = {match.start(): match.end() for match in untouched.finditer(text)} if untouched else {}
        result: list[str] = []
        spans: list[tuple[int, int]] = []
        place = 0
        while place < len(text):
            if place in kept:
                end = kept[place]
                result.extend(text[place:end])
                spans.extend((at, at + 1) for at in range(place, end))
            else:
                end = place + (2 if text.startswith(_QUOTES, place) else 1)
                characters = '"' if end == place + 2 else self._folded(text[place])
                result.extend(characters)
                spans.extend([(place, end)] * len(characters))
            place = end
        spans.append((len(text), len(text)))
        return "".join(result), np.array(spans, np.int32)

    def normalizers(self) -> list[normalizers.Normalizer]:
        """Return the equivalent steps of the `tokenizers` library."""
        steps: list[normalizers.Normalizer] = [normalizers.Replace(quotes, '"') for quotes in _QUOTES]
        if self.strip_accents:
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if self.lowercase:
            steps.append(normalizers.Lowercase())
        return steps

    def settings(self) -> dict[str, bool]:
        """Return the entries of bertfam's tokenizer_config.json for this cleaning."""
        return {_OURS: True, "do_lower_case": self.lowercase, "keep_accents": not self.strip_accents}

    def _folded(self, character: str) -> str:
        if self.strip_accents:
            decomposed = unicodedata.normalize("NFKD", character)
            character = "".join(part for part in decomposed if unicodedata.category(part)[0] != "M")
        return "".join(part.lower() for part in character) if self.lowercase else character


def stated_cleaning(tokenizer_config: Mapping[str, Any], model_config: Mapping[str, Any]) -> Cleaning | None:
    """Return the cleaning that tokenizer_config.json and config.json state in Hugging Face's terms; None if there is none."""
    name = str(tokenizer_config.get("tokenizer_class") or _CLASSES.get(str(model_config.get("model_type")), ""))
    defaults = _DEFAULTS.get(name.removesuffix("Fast"), {})
    if not defaults and not tokenizer_config.get(_OURS):
        return None
    settings = {**defaults, **tokenizer_config}
    return Cleaning(bool(settings["do_lower_case"]), not settings["keep_accents"])
