"""Conversion of a SentencePiece model to the `tokenizers` library, which Hugging Face's transformers uses."""

from collections.abc import Mapping, Sequence

from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from bertfam.data.vocabularies.layouts import Layout
from bertfam.data.vocabularies.sentence_piece.composition import normalization_steps
from bertfam.data.vocabularies.sentence_piece.normalization import Cleaning
from bertfam.data.vocabularies.tokenizers_vocabulary import template

_UNIGRAM, _NORMAL, _USER_DEFINED = 1, 1, 4


def make_tokenizer(
    proto: ModelProto, layout: Layout, ids: Mapping[str, int], sentinels: Sequence[str], cleaning: Cleaning | None
) -> Tokenizer:
    """Create a tokenizer that gives the same ids for text and for prompts with control pieces.

    Args:
      proto: the model, without sentinels.
      layout: the control pieces.
      ids: ids of all pieces, including sentinels.
      sentinels: the sentinel pieces.
      cleaning: cleaning of text before the model sees it.
    """
    tokenizer = Tokenizer(_unigram(proto, ids) if proto.trainer_spec.model_type == _UNIGRAM else _bpe(proto, ids))
    spec = proto.normalizer_spec
    steps: list[normalizers.Normalizer] = [] if cleaning is None else cleaning.normalizers()
    if spec.precompiled_charsmap:
        steps += normalization_steps(spec.precompiled_charsmap)
    if spec.remove_extra_whitespaces:
        # Spaces before the first word collapse into the one that each text begins with.
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r" \z"), "")]
    elif spec.add_dummy_prefix:
        # Metaspace puts no space before a space. A single space stays as it is, since it may follow a control piece.
        steps.append(normalizers.Replace(Regex(r"\A(?=  )"), " "))
    steps.append(normalizers.Replace(" ", "▁"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    if spec.add_dummy_prefix:
        # "first" adds no space after a control piece inside a text.
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    before, after = layout.frame
    if before or after:
        tokenizer.post_processor = template(layout, dict(ids))
    controls = sorted([*layout.controls, *sentinels], key=ids.__getitem__)
    tokenizer.add_special_tokens([AddedToken(piece, lstrip=True) for piece in controls])
    return tokenizer


def _unigram(proto: ModelProto, ids: Mapping[str, int]) -> Unigram:
    best = max((piece.score for piece in proto.pieces if piece.type == _NORMAL), default=0.0)
    scores = {
        piece.piece: len(piece.piece) * best - 0.1 if piece.type == _USER_DEFINED else piece.score for piece in proto.pieces
    }
    unknown = next(id for id, piece in enumerate(proto.pieces) if piece.type == 2)
    rows = [(piece, scores.get(piece, 0.0)) for piece in sorted(ids, key=ids.__getitem__)]
    return Unigram(rows, unk_id=unknown, byte_fallback=proto.trainer_spec.byte_fallback)


def _bpe(proto: ModelProto, ids: Mapping[str, int]) -> BPE:
    """Create the merges of all pieces by score, as SentencePiece merges the neighbours that form the highest-scored piece."""
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == _NORMAL}
    pairs = [
        (-score, ids[piece], piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    unknown = next(piece.piece for piece in proto.pieces if piece.type == 2)
    return BPE(
        dict(ids),
        [(left, right) for _, _, left, right in sorted(pairs)],
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=proto.trainer_spec.byte_fallback,
    )
