"""What ALBERT and XLNet do to a text before their SentencePiece model sees it, as Hugging Face's tokenizers do it."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import normalizers

_OURS = "clean_text_first"  # in tokenizer_config.json
_QUOTES = ("``", "''")  # both become "
# Hugging Face's class -> what it does where tokenizer_config.json does not say
_DEFAULTS = {
    "AlbertTokenizer": {"do_lower_case": True, "keep_accents": False},
    "XLNetTokenizer": {"do_lower_case": False, "keep_accents": False},
}
_CLASSES = {"albert": "AlbertTokenizer", "xlnet": "XLNetTokenizer"}


@dataclass(frozen=True)
class Cleaning:
    """`` and '' become ", accents are dropped (after NFKD), capitals folded.

    Attributes:
      lowercase: whether capitals are folded.
      strip_accents: whether characters are decomposed (NFKD) and marks dropped.
    """

    lowercase: bool
    strip_accents: bool

    def clean(self, text: str, untouched: re.Pattern[str] | None = None) -> tuple[str, np.ndarray]:
        """The clean text, and int32[its length + 1, 2], where each of its characters begins and ends in `text`.

        Args:
          text: the text.
          untouched: what is left as it is.
        """
        kept = {found.start(): found.end() for found in untouched.finditer(text)} if untouched else {}
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
        """The same for the `tokenizers` library."""
        steps: list[normalizers.Normalizer] = [normalizers.Replace(quotes, '"') for quotes in _QUOTES]
        if self.strip_accents:
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if self.lowercase:
            steps.append(normalizers.Lowercase())
        return steps

    def settings(self) -> dict[str, bool]:
        """What our tokenizer_config.json says of it."""
        return {_OURS: True, "do_lower_case": self.lowercase, "keep_accents": not self.strip_accents}

    def _folded(self, character: str) -> str:
        if self.strip_accents:
            decomposed = unicodedata.normalize("NFKD", character)
            character = "".join(part for part in decomposed if unicodedata.category(part)[0] != "M")
        return "".join(part.lower() for part in character) if self.lowercase else character


def stated_cleaning(tokenizer_config: Mapping[str, Any], model_config: Mapping[str, Any]) -> Cleaning | None:
    """What a folder's tokenizer_config.json and config.json state, in Hugging Face's words; None: the model sees plain text."""
    name = str(tokenizer_config.get("tokenizer_class") or _CLASSES.get(str(model_config.get("model_type")), ""))
    defaults = _DEFAULTS.get(name.removesuffix("Fast"), {})
    if not defaults and not tokenizer_config.get(_OURS):
        return None
    found = {**defaults, **tokenizer_config}
    return Cleaning(bool(found["do_lower_case"]), not found["keep_accents"])
