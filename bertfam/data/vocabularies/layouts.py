"""Table of the vocabulary layouts: control tokens, their ids, and the frame that they put around a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Layout:
    """Control tokens of a family's vocabulary.

    Attributes:
      first: pieces with the ids 0, 1, ...
      last: pieces after the learned ones.
      sentinels: number of <extra_id_N> pieces at the end of the vocabulary; <extra_id_0> has the highest id.
      pad, unk: see `bertfam.corruption.token_ids`; if `unk` is `pad`, the vocabulary must be able to encode every text.
      bos, cls, sep, eos, mask: see `bertfam.corruption.token_ids`; bos is Hugging Face's bos_token.
      eos_published: Hugging Face's eos_token if it is not the token that ends a document.
      single, pair: templates of one text $A, or two texts $A and $B, with control tokens; :N is the token type.
      padding_side: the side on which rows are padded.
      pad_type: token type of padding.
      trim_offsets: True if the offsets of byte-level pieces exclude spaces.
    """

    first: tuple[str, ...]
    pad: str
    unk: str
    single: str
    pair: str
    last: tuple[str, ...] = ()
    sentinels: int = 0
    bos: str | None = None
    cls: str | None = None
    sep: str | None = None
    eos: str | None = None
    mask: str | None = None
    eos_published: str | None = None
    padding_side: str = "right"
    pad_type: int = 0
    trim_offsets: bool = True

    @property
    def controls(self) -> tuple[str, ...]:
        """All control pieces including the unknown piece, without sentinels."""
        return (*self.first, *self.last)

    @property
    def frame(self) -> tuple[list[str], list[str]]:
        """Pieces before and after one text."""
        before, after = self.single.split("$A:0")
        return [word.split(":")[0] for word in before.split()], [word.split(":")[0] for word in after.split()]

    def for_continuation(self, before: Sequence[str]) -> Layout:
        """Return the layout of a model that continues a text: `before` precedes each text, and nothing follows it."""
        frame = "".join(f"{piece}:0 " for piece in before)
        return replace(self, single=f"{frame}$A:0", pair=f"{frame}$A:0 {frame}$B:0")

    @property
    def published_names(self) -> dict[str, str]:
        """Pieces by Hugging Face's names, such as pad_token."""
        names = {"bos": self.bos, "eos": self.eos_published or self.eos, "unk": self.unk, "sep": self.sep, "pad": self.pad}
        names |= {"cls": self.cls, "mask": self.mask}
        return {f"{name}_token": piece for name, piece in names.items() if piece is not None}


def sentinel_pieces(count: int) -> list[str]:
    """Return the pieces <extra_id_N> in the order of their ids, the highest N first."""
    return [f"<extra_id_{number}>" for number in reversed(range(count))]


def trailing_sentinels(pieces: Sequence[str]) -> int:
    """Count the sentinels at the end of the pieces, from <extra_id_0>, the last piece, upwards."""
    count = 0
    while count < len(pieces) and pieces[-1 - count] == f"<extra_id_{count}>":
        count += 1
    return count


_SINGLE, _PAIR = "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"

LAYOUTS = {
    # Devlin et al. 2019
    "bert": Layout(
        ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]", single=_SINGLE, pair=_PAIR,
    ),
    # Liu et al. 2019; also used by BART
    "roberta": Layout(
        ("<s>", "<pad>", "</s>", "<unk>"), last=("<mask>",),
        pad="<pad>", unk="<unk>", bos="<s>", cls="<s>", sep="</s>", eos="</s>", mask="<mask>",
        single="<s>:0 $A:0 </s>:0", pair="<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0",
    ),
    # Radford et al. 2019
    "gpt2": Layout(
        (), last=("<|endoftext|>",),
        pad="<|endoftext|>", unk="<|endoftext|>", bos="<|endoftext|>", eos="<|endoftext|>",
        single="$A:0", pair="$A:0 $B:0", trim_offsets=False,
    ),
    # Raffel et al. 2020
    "t5": Layout(
        ("<pad>", "</s>", "<unk>"), sentinels=100,
        pad="<pad>", unk="<unk>", eos="</s>", single="$A:0 </s>:0", pair="$A:0 </s>:0 $B:0 </s>:0",
    ),
    # Lan et al. 2020
    "albert": Layout(
        ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]", single=_SINGLE, pair=_PAIR,
    ),
    # Yang et al. 2019
    "xlnet": Layout(
        ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"),
        pad="<pad>", unk="<unk>", bos="<s>", cls="<cls>", sep="<sep>", eos="<eod>", mask="<mask>", eos_published="</s>",
        single="$A:0 <sep>:0 <cls>:2", pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2", padding_side="left", pad_type=3,
    ),
    # Zaheer et al. 2020; published vocabularies have [CLS] [SEP] [MASK] at ids 65 to 67, which `find_layout` accepts
    "big_bird": Layout(
        ("<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        pad="<pad>", unk="<unk>", bos="<s>", cls="[CLS]", sep="[SEP]", eos="</s>", mask="[MASK]", single=_SINGLE, pair=_PAIR,
    ),
}  # fmt: skip

# kind of vocabulary -> name of its default layout
DEFAULT_LAYOUTS = {"wordpiece": "bert", "words": "bert", "unigram": "albert", "bpe": "albert", "byte_bpe": "roberta"}


def find_layout(pieces: Sequence[str]) -> Layout | None:
    """Return the layout with the most control pieces among those fully contained in `pieces`, at any ids; None if none is."""
    present = set(pieces)
    fitting = [layout for layout in LAYOUTS.values() if present.issuperset(layout.controls)]
    return max(fitting, key=lambda layout: len(layout.controls), default=None)
