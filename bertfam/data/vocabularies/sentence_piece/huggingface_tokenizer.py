"""Conversion of a SentencePiece model to the `tokenizers` library, which Hugging Face's transformers uses."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from sentencepiece.sentencepiece_model_pb2 import ModelProto, NormalizerSpec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from bertfam.data.vocabularies.huggingface_files import warn_once_in_parent
from bertfam.data.vocabularies.layouts import Layout
from bertfam.data.vocabularies.sentence_piece.composition import normalization_steps
from bertfam.data.vocabularies.sentence_piece.normalization import Cleaning
from bertfam.data.vocabularies.tokenizers_vocabulary import template
from bertfam.storage.untrusted import shown

_UNIGRAM, _NORMAL, _USER_DEFINED = 1, 1, 4
_START = "\ufdd2"  # stands in no text
_SAMPLES = 500  # pieces of a model of which `warn_of_other_splits` makes texts
_FIRST_SYMBOL = 0x100000  # private characters, one for each user-defined symbol that normalisation would change


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
    symbols = [piece.piece for piece in proto.pieces if piece.type == _USER_DEFINED and piece.piece not in layout.controls]
    symbols.sort(key=len, reverse=True)  # the longest match counts
    is_unigram = proto.trainer_spec.model_type == _UNIGRAM
    tokenizer = Tokenizer(_unigram(proto, ids) if is_unigram else _bpe(proto, ids, has_symbols=bool(symbols)))
    spec = proto.normalizer_spec
    cleaners: list[normalizers.Normalizer] = [] if cleaning is None else cleaning.normalizers()
    tokenizer.normalizer = normalizers.Sequence([*cleaners, *_steps(spec, symbols)])
    splitters = _splitters(proto, symbols)
    if splitters:
        tokenizer.pre_tokenizer = splitters[0] if len(splitters) == 1 else pre_tokenizers.Sequence(splitters)
    last: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if spec.add_dummy_prefix or spec.remove_extra_whitespaces:
        last.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(last)
    before, after = layout.frame
    if before or after:
        tokenizer.post_processor = template(layout, dict(ids))
    controls = sorted([*layout.controls, *sentinels], key=ids.__getitem__)
    tokenizer.add_special_tokens([AddedToken(piece, lstrip=True) for piece in controls])
    return tokenizer


def warn_of_other_splits(
    proto: ModelProto, layout: Layout, tokenizer: Tokenizer, encode: Callable[[Sequence[str]], Sequence[np.ndarray]]
) -> None:
    """Warn if a tokenizer splits texts that are made of the model's own pieces in another way than the model.

    The model adds scores in float32 and the tokenizer in float64, which may choose another of several splits whose scores are
    equal, or nearly so: rows of one character have many. A model that bertfam has learnt has scores whose sums are exact.

    Args:
      proto: the model, without sentinels.
      layout: the control pieces, which stand in no text.
      tokenizer: the tokenizer that is exported.
      encode: encodes texts by the model.
    """
    pieces = [piece for piece in proto.pieces if piece.type in (_NORMAL, _USER_DEFINED) and piece.piece not in layout.controls]
    symbols = [piece.piece for piece in pieces if piece.type == _USER_DEFINED][:_SAMPLES]
    characters = [piece.piece for piece in pieces if len(piece.piece) == 1 and piece.piece != "▁"][:_SAMPLES]
    texts = [text for symbol in symbols for text in (symbol, symbol.replace("▁", " "))]
    texts += [character * length for character in characters for length in (3, 5, 7, 19)]
    for text, ids, split in zip(texts, encode(texts), tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        if ids.tolist() != split.ids:
            own = [str(tokenizer.id_to_token(id)) for id in ids.tolist()]
            warn_once_in_parent(
                f"tokenizer.json, which transformers reads, splits {shown(text)} into {' '.join(split.tokens)}, and the "
                f"SentencePiece model, which training follows, into {' '.join(own)}: few texts differ; encode with spiece.model "
                "and the library sentencepiece where all ids must be equal"
            )
            return


def _steps(spec: NormalizerSpec, symbols: Sequence[str]) -> list[normalizers.Normalizer]:
    """Return the steps that normalise text, and leave user-defined symbols as they are."""
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps += normalization_steps(spec.precompiled_charsmap)
    if spec.remove_extra_whitespaces:
        # Spaces before the first word collapse into one, which `_splitters` treats.
        # Without that one, the first of them stays, by whose place `_splitters` knows the beginning of the text.
        several = (Regex(" {2,}"), " ") if spec.add_dummy_prefix else (Regex("(?<= ) "), "")
        steps += [normalizers.Replace(*several), normalizers.Replace(Regex(r" \z"), "")]
    elif spec.add_dummy_prefix:
        # Metaspace puts no space before a space. A single space stays as it is, since it may follow a control piece.
        steps.append(normalizers.Replace(Regex(r"\A(?=  )"), " "))
    steps.append(normalizers.Replace(" ", "▁"))
    shown = {symbol: symbol.replace(" ", "▁") for symbol in symbols}
    changed = [symbol for symbol in symbols if normalizers.Sequence(steps).normalize_str(symbol) != shown[symbol]]
    hiding: list[normalizers.Normalizer] = []
    for number, symbol in enumerate(changed):
        character = chr(_FIRST_SYMBOL + number)
        first, rest = re.escape(symbol[0]), re.escape(symbol[1:])
        # In two steps, since the character keeps the place of what it replaces only if that is one character.
        hiding.append(normalizers.Replace(Regex(f"{first}(?={rest})"), character))
        hiding.append(normalizers.Replace(Regex(f"(?<={character}){rest}"), ""))
        steps.append(normalizers.Replace(character, shown[symbol]))
    return [*hiding, *steps]


def _splitters(proto: ModelProto, symbols: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    """Return the steps that treat the first space of a text and, in a BPE, cut out user-defined symbols."""
    spec, splitters = proto.normalizer_spec, list[pre_tokenizers.PreTokenizer]()
    # "first" changes the beginning of a text, and none after a control piece inside it.
    if spec.add_dummy_prefix:
        splitters.append(pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False))
    elif spec.remove_extra_whitespaces:
        splitters.append(pre_tokenizers.Metaspace(replacement=_START, prepend_scheme="first", split=False))
        splitters.append(pre_tokenizers.Split(Regex(f"{_START}▁?"), "removed"))
    if symbols and proto.trainer_spec.model_type != _UNIGRAM:
        splitters.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, symbols))), "isolated"))
    return splitters


def _unigram(proto: ModelProto, ids: Mapping[str, int]) -> Unigram:
    # The library's own score of a symbol, whose length is that in bytes and whose best score is at least 0.
    best = max((piece.score for piece in proto.pieces if piece.type == _NORMAL and piece.score > 0), default=0.0)
    scores = {
        piece.piece: len(piece.piece.encode()) * best - 0.1 if piece.type == _USER_DEFINED else piece.score
        for piece in proto.pieces
    }
    unknown = next(id for id, piece in enumerate(proto.pieces) if piece.type == 2)
    rows = [(piece, scores.get(piece, 0.0)) for piece in sorted(ids, key=ids.__getitem__)]
    return Unigram(rows, unk_id=unknown, byte_fallback=proto.trainer_spec.byte_fallback)


def _bpe(proto: ModelProto, ids: Mapping[str, int], *, has_symbols: bool) -> BPE:
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
        ignore_merges=has_symbols,  # a symbol, cut out of the text, is a piece that no merge forms
    )
