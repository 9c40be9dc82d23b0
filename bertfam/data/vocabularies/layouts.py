"""Which control tokens a vocabulary has, where their ids lie, and how they frame a text: one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Layout:
    """The control tokens of a family's vocabulary.

    Attributes:
      first: pieces with the ids 0, 1, ...
      last: pieces after the learnt ones.
      sentinels: how many pieces <extra_id_N> end the vocabulary; <extra_id_0> has the highest id.
      pad, unk: see `bertfam.corruption.token_ids`; where `unk` is `pad` the vocabulary must spell every text.
      bos, cls, sep, eos, mask: see there; bos is what Hugging Face calls so.
      eos_published: what Hugging Face calls eos, where that is not what ends a document.
      single, pair: one text $A, or two texts $A and $B, among control tokens; :N is the token type.
      padding_side: where rows are padded.
      pad_type: token type of padding.
      trim_offsets: whether the offsets of byte-level pieces leave spaces out.
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
        """All control pieces and the unknown, without sentinels."""
        return (*self.first, *self.last)

    @property
    def frame(self) -> tuple[list[str], list[str]]:
        """The pieces before and after one text."""
        before, after = self.single.split("$A:0")
        return [word.split(":")[0] for word in before.split()], [word.split(":")[0] for word in after.split()]

    def going_on(self, before: Sequence[str]) -> Layout:
        """The layout of models that go on from a text: these pieces stand before each text, and none behind it."""
        frame = "".join(f"{piece}:0 " for piece in before)
        return replace(self, single=f"{frame}$A:0", pair=f"{frame}$A:0 {frame}$B:0")

    @property
    def published_names(self) -> dict[str, str]:
        """The pieces by Hugging Face's names, such as pad_token."""
        names = {"bos": self.bos, "eos": self.eos_published or self.eos, "unk": self.unk, "sep": self.sep, "pad": self.pad}
        names |= {"cls": self.cls, "mask": self.mask}
        return {f"{name}_token": piece for name, piece in names.items() if piece is not None}


def sentinel_pieces(count: int) -> list[str]:
    """<extra_id_N> in the order of their ids, the highest N first."""
    return [f"<extra_id_{number}>" for number in reversed(range(count))]


def trailing_sentinels(pieces: Sequence[str]) -> int:
    """How many <extra_id_N> end the pieces, counted up from <extra_id_0>, the last."""
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
    # Liu et al. 2019; BART has the same
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
    # Zaheer et al. 2020; published vocabularies have [CLS] [SEP] [MASK] at 65 to 67, which is read as it is
    "big_bird": Layout(
        ("<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        pad="<pad>", unk="<unk>", bos="<s>", cls="[CLS]", sep="[SEP]", eos="</s>", mask="[MASK]", single=_SINGLE, pair=_PAIR,
    ),
}  # fmt: skip

# kind of vocabulary -> what it has unless told otherwise
DEFAULT_LAYOUTS = {"wordpiece": "bert", "unigram": "albert", "bpe": "albert", "byte_bpe": "roberta"}


def find_layout(pieces: Sequence[str]) -> Layout | None:
    """The layout with the most control pieces that a vocabulary has all of, wherever they stand; None where there is none."""
    present = set(pieces)
    fitting = [layout for layout in LAYOUTS.values() if present.issuperset(layout.controls)]
    return max(fitting, key=lambda layout: len(layout.controls), default=None)
