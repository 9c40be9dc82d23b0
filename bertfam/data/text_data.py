"""Data of a run: corpora, vocabulary, token cache, rows and noise."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, Corruption, TextCorruption
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.corpora.corpus import Corpus
from bertfam.data.rows.batches import Batches, CorruptedRows, Examples
from bertfam.data.rows.blocks import BlockExamples, BlockOrder, Blocks
from bertfam.data.rows.earlier_rows import earlier_rows, earlier_text_pairs
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples
from bertfam.data.rows.labelled.similar_lengths import LengthBatches, similar_length_batches
from bertfam.data.rows.layout import PairLayout, RowLayout
from bertfam.data.rows.mixture import ConcatenatedRows, MixedRows, Mixture, SelectedRows, Shares, shares
from bertfam.data.rows.order import Contiguous, Shuffled, Streams
from bertfam.data.rows.order import Order as RowOrder
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.rows.text_pairs import FeatureSubset, TextPairs, WithPositions
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.documents import Documents, StoredDocuments
from bertfam.errors import UserError
from bertfam.features import SENTENCES, FeatureSpec, RowShape, start_features
from bertfam.plurals import plural
from bertfam.storage.paths import to_path
from bertfam.storage.untrusted import check_subfolder

TEXT = "text"  # the name of the only corpus
Order = Literal["shuffled", "streams"]
LATEST_ROWS = 4
_PLAN, _ORDER, _NOISE, _BATCHES = range(4)
# Held-out rows and their masks are the same for every run and seed, so that losses are comparable.
_HELD_OUT_SEED = 0
_SHORT = 100  # more tokens than any layout of rows needs


@dataclass(frozen=True)
class TextData:
    """Rows of running text, of pairs of inputs and targets, or of a mixture of both.

    Attributes:
      corpus: A corpus, or a mixture of several; None if `cache_dir` holds a token cache.
      vocabulary: Folder of the vocabulary; None if `cache_dir` holds a token cache.
      cache_dir: Folder of the token cache, which is built there if it is missing; None: MODEL_DIR/cache.
      rows: Layout of running text.
      pairs: Layout of pairs, for corpora of pairs (`PairFiles`, `TargetFiles`, `SeqioTask` with pairs): `TextPairs` of an
        encoder-decoder, `Completions` of a causal LM. They have no noise, and their rows have the shape of those that the noise
        makes.
      corruption: Noise: `BertMasking`, or for decoders `NextTokens`, T5's `SpanCorruption` and BART's `Denoising`; `TextToText`
        for pairs only.
      order: "shuffled", or "streams" for models with a memory: row r of a batch continues where row r of the previous one ended.
      dupe_factor: Number of epochs with draws of their own (noise and sentence pairs), after which the draws repeat in another
        order, as in BERT's published data with a `dupe_factor` (static masking, Liu et al. 2019). None: new draws in every epoch
        (dynamic masking).
      blocks: Sizes of the blocks in which the shuffled rows of a large corpus are planned. None: corpora of any size are planned
        as a whole, in memory and time that grow with them.
      similar_lengths: Batches of labelled texts have rows of similar length, and only as much padding as these need, unless the
        texts are of several corpora; see `LengthOrder`. False: all rows have the length of their stage, in a shuffled order.
      rows_version: Version of the rows, which a run keeps. 1 is for runs begun before it was recorded: each stage starts an order
        of its own, and sentence pairs are those of `EarlierPairs`. 2 is for runs begun before there were `blocks`, and 3 for
        those begun when packed rows had at most a sixteenth of their length in examples and divided none.
    """

    corpus: Corpus | Mixture | None = None
    vocabulary: str | None = None
    cache_dir: str | None = None
    rows: RowLayout = SentencePairs()
    pairs: PairLayout = TextPairs()
    corruption: TextCorruption = BertMasking()
    order: Order = "shuffled"
    dupe_factor: int | None = None
    rows_version: int = LATEST_ROWS
    blocks: Blocks | None = Blocks()
    similar_lengths: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.rows_version <= LATEST_ROWS:
            raise UserError(f"TextData.rows_version is {self.rows_version}: it must be from 1 to {LATEST_ROWS}")
        if self.order not in get_args(Order):
            raise UserError(f"TextData.order is {self.order!r}: it must be one of {', '.join(get_args(Order))}")
        if self.order == "streams" and self.rows.is_packed:
            raise UserError('TextData.order = "streams" requires consecutive rows, not packed ones: use @Chunks()')
        self._check_form()
        if self.pairs.packed:
            self.pairs.check(self.corruption, f"{type(self.pairs).__name__}.packed")
        if self.dupe_factor is not None and self.dupe_factor < 1:
            raise ValueError(f"dupe_factor {self.dupe_factor} is less than 1; None draws anew in every epoch")
        for name, fix in (("vocabulary", "name its folder"), ("cache_dir", "name a folder, or leave it out for MODEL_DIR/cache")):
            if getattr(self, name) == "":
                raise UserError(f"TextData.{name} is empty: {fix}")

    @property
    def needs_units(self) -> bool:
        """True if the noise reads marks of phrases and entities, so that the text must be a `MarkedText`."""
        return self.corruption.needs_units

    def _check_form(self) -> None:
        """Raise UserError if the rows do not have the form that the noise requires."""
        noise, rows = type(self.corruption).__name__, self.rows
        inner = rows.content
        if (inner.is_labelled, inner.labels_words) != (bool(self.corruption.labels), self.corruption.labels_words):
            raise UserError(
                f"{type(inner).__name__} and {noise} do not make rows together: TextData.rows = @LabelledTexts() goes with "
                "TextData.corruption = @Labels(), and @TaggedWords() with @Tags()"
            )
        if rows.is_packed and not self.corruption.packs:
            fix = f"@{type(inner).__name__}()" if inner.is_running_text else "@WholeDocuments()"
            raise UserError(f"{noise} makes rows of one example each, but packed rows have several: set TextData.rows = {fix}")
        if self.corruption.form != FRAMED and not inner.is_running_text:
            where = "Packed.rows = @WholeDocuments()" if rows.is_packed else "TextData.rows = @Chunks()"
            raise UserError(f"{noise} requires rows of running text, not {type(inner).__name__}: set {where}")
        if self.corruption.form.continued and not inner.separated:
            raise UserError(f"{noise} predicts where documents end, but {type(inner).__name__}.separated is False: leave it out")

    def check_marks(self) -> None:
        """Raise UserError if a corpus has no marks, no pairs or no text that the noise requires."""
        for name, corpus in self.corpora.items():
            label = "the text" if name == TEXT else f"corpus {name}"
            self._check_labels(label, corpus.labels, corpus.labels_words)
            if not corpus.units:
                self._check_units(label, has_units=False)
            if corpus.pairs:
                self.pairs.check(self.corruption, label)
            elif not self.corruption.reads_text:
                self.refuse_text(label)

    def _check_labels(self, name: str, labels: int, words: bool) -> None:
        """Raise UserError if the text does not have the labels that its rows have."""
        noise = self.corruption
        if (labels, words) == (noise.labels, noise.labels_words):
            return
        if not labels:
            fix = f"give TextData.corpus = @{'TaggedFiles' if noise.labels_words else 'LabelledFiles'}()"
        elif noise.labels and words == noise.labels_words:
            fix = f"set Labels.count = {labels}"
        else:
            rows, corruption = ("TaggedWords", "Tags") if words else ("LabelledTexts", "Labels")
            fix = f"set TextData.rows = @{rows}() and TextData.corruption = @{corruption}()"
        own, required = (
            f"{plural(count, 'label')} per {'word' if of_words else 'text'}" if count else "no labels"
            for count, of_words in ((labels, words), (noise.labels, noise.labels_words))
        )
        raise UserError(f"{name} has {own}, and {type(noise).__name__} requires {required}: {fix}")

    def _check_units(self, name: str, *, has_units: bool) -> None:
        if not has_units and self.needs_units:
            reader = type(getattr(self.corruption, "choice", self.corruption)).__name__
            raise UserError(
                f"{name} has no marks of phrases and entities, which {reader} reads: give the text with "
                "--marks=given or --marks=names, or use noise that reads none (BertMasking.choice = @WholeWords(), say)"
            )

    def _check_rows(self, length: int) -> None:
        try:
            self.rows.check_length(self.corruption.raw_length(length))
        except UserError:
            # Noise may make a row of `length` tokens from one of another length, which no setting names.
            enough = next((longer for longer in range(length + 1, length + _SHORT) if self._fits(longer)), None)
            if self.corruption.raw_length(length) == length or enough is None:
                raise
            names = f"{type(self.rows).__name__} with {type(self.corruption).__name__}"
            raise UserError(f"length {length} is too short for {names}; use at least {enough}") from None

    def _fits(self, length: int) -> bool:
        with contextlib.suppress(UserError):
            self.rows.check_length(self.corruption.raw_length(length))
            return True
        return False

    def check_length(self, length: int) -> None:
        """Raise UserError if rows are too short for their layout, or for the configured number of predictions or examples."""
        self._check_rows(length)
        shape = self.shape(length)
        for what, count, part in (("predictions", shape.predictions, self.corruption), ("examples", shape.examples, self.rows)):
            if count > length:
                name = f"{type(part).__name__}.max_{what}"
                raise UserError(f"{count} {what} do not fit into a row of {length} tokens: lower {name}")

    @property
    def corpora(self) -> dict[str, Corpus]:
        """Corpora by their names in the token cache; empty if `corpus` is None."""
        if self.corpus is None:
            return {}
        if isinstance(self.corpus, Mixture):
            return dict(zip(self.corpus.names, self.corpus.corpora, strict=True))
        return {TEXT: self.corpus}

    @property
    def reads_seqio(self) -> bool:
        """True if a corpus reads a seqio task, which only a child process may do."""
        return any(corpus.bare.reads_seqio for corpus in self.corpora.values())

    @property
    def _layout(self) -> RowLayout:
        """Layout of running text in the version of the rows."""
        return earlier_rows(self.rows, self.rows_version)

    def shape(self, length: int) -> RowShape:
        """Return the static sizes of rows of `length` tokens."""
        noise = self.corruption
        pairs = earlier_text_pairs(self.pairs, self.rows_version)
        examples = max(self._layout.most_examples(length), pairs.most_examples(noise.input_length(length)))
        return RowShape(noise.input_length(length), noise.predictions(length), examples, noise.target_length(length))

    def features(self, length: int) -> dict[str, FeatureSpec]:
        """Return the features of rows of `length` tokens."""
        shape, relation = self.shape(length), self.rows.relation
        specs = self.corruption.features(shape)
        if shape.targets:  # rows for decoders have no labels of sentence pairs
            return specs
        labels = SENTENCES[relation].features(shape) if relation else start_features(shape) if shape.examples > 1 else {}
        return specs | labels

    def examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds) -> Examples:
        """Return the clean rows from which the noise makes rows of `length` tokens, planned with `seed`."""
        if documents.pairs:
            self.pairs.check(self.corruption, documents.name)
            pairs = earlier_text_pairs(self.pairs, self.rows_version)
            return pairs.plan(documents, self.corruption, length, seed, tokens)
        if not self.corruption.reads_text:
            self.refuse_text(documents.name)
        self._check_labels(documents.name, documents.label_count, documents.labels_words)
        length = self.corruption.raw_length(length)
        return self._layout.examples(documents, length, seed, tokens, self.corruption.form)

    def rows_of(self, documents: StoredDocuments) -> RowLayout | PairLayout:
        """Return the layout of the documents: `rows` or `pairs`."""
        return self.pairs if documents.pairs else self.rows

    def least_documents(self, pairs: bool) -> int:
        """Return the minimum number of documents of running text, or of pairs."""
        return 1 if pairs else self.rows.least_documents

    @staticmethod
    def refuse_text(name: str) -> None:
        """Raise the UserError about running text in a run on pairs only."""
        raise UserError(
            f"{name} is running text, but TextToText is for pairs of inputs and targets only: set TextData.corruption to the "
            "noise of the text, such as @SpanCorruption(), which does not change pairs"
        )

    def cache_directory(self, model_dir: str | Path) -> Path:
        """Return the folder of the token cache of a run in MODEL_DIR; raise UserError if it is there, and a link out of it."""
        if self.cache_dir:
            return to_path(self.cache_dir)
        own = to_path(model_dir) / "cache"
        check_subfolder(own)
        return own

    def training(
        self,
        cache: TokenCache,
        tokens: TokenIds,
        length: int,
        batch_size: int,
        seed: int,
        stage: int = 0,
        *,
        split: str = "train",
        own_shares: Shares | None = None,
    ) -> Batches:
        """Return the endless batches of a stage; every epoch has new noise and, if shuffled, a new order.

        Args:
          cache: The token cache.
          tokens: Ids of the vocabulary.
          length: Tokens of a row.
          batch_size: Rows of a batch.
          seed: Seed of the run.
          stage: Index of the stage, which has draws of its own; later stages over the same rows are `continued`.
          split: Split of the text.
          own_shares: Shares of the corpora in the stage; None: those of the mixture.
        """
        mixture = self.corpus if isinstance(self.corpus, Mixture) else None
        if mixture and mixture.names != cache.corpora:
            raise UserError(
                f"{cache.directory} holds the corpora {', '.join(cache.corpora)}, but Mixture.names are "
                f"{', '.join(mixture.names)}: give the cache of these corpora, or none"
            )
        is_planned_whole = self.order != "shuffled" or self.rows_version < 3 or self.has_similar_lengths
        blocks = None if is_planned_whole else self.blocks
        parts = tuple(self._part(cache, name, tokens, length, seed, stage, split, blocks) for name in cache.corpora)
        if len(parts) == 1:
            self._check_shares(cache, own_shares)
            (rows,) = parts
            if self.has_similar_lengths and isinstance(rows.examples, LabelledExamples):
                return similar_length_batches(rows, length, batch_size, self._key(seed, _BATCHES, stage))
            streams = Streams(len(rows.examples), batch_size)
            return Batches(replace(rows, order=streams) if self.order == "streams" else rows, batch_size)
        if self.order == "streams":
            raise UserError(
                f'TextData.order = "streams" requires a single corpus, but {cache.directory} holds {len(parts)}: use "shuffled"'
            )
        return Batches(MixedRows(parts, self._shares(cache, parts, own_shares)), batch_size)

    def _shares(self, cache: TokenCache, parts: Sequence[CorruptedRows], own_shares: Shares | None) -> tuple[float, ...]:
        """Return the share of each corpus in the rows of a stage."""
        sizes = [len(part.examples) for part in parts]
        if own_shares:
            return own_shares.of(cache.corpora, sizes)
        return self.corpus.shares(sizes) if isinstance(self.corpus, Mixture) else shares(sizes)

    @staticmethod
    def _check_shares(cache: TokenCache, own_shares: Shares | None) -> None:
        if own_shares:
            raise UserError(f"Stage.shares are those of several corpora, but {cache.directory} holds one: leave them out")

    def has_rows_of(self, other: "TextData", length: int, cache: TokenCache) -> bool:
        """Return whether rows of `length` are made from the same clean rows as those of data that differ in the noise alone."""
        ours, theirs = self.corruption, other.corruption
        if ours == theirs:
            return True
        is_text = not self.rows.is_labelled and not any(map(cache.has_pairs, cache.corpora))
        return is_text and (ours.form, ours.raw_length(length)) == (theirs.form, theirs.raw_length(length))

    @property
    def continues_stages(self) -> bool:
        """True if stages over the same rows continue one order and one count of epochs."""
        return self.rows_version > 1

    def continued(self, batches: Batches, steps: int, batch_size: int) -> Batches:
        """Return the batches of the next stage over the same rows, after `steps` of `batches`, which `training` returned."""
        if isinstance(batches, LengthBatches):
            return batches.after(steps, batch_size)
        if self.order == "shuffled":
            return Batches(batches.sequence, batch_size, batches.place(steps))
        rows = batches.sequence
        assert isinstance(rows, CorruptedRows) and isinstance(rows.order, Streams)
        return Batches(replace(rows, order=rows.order.after(steps, batch_size)), batch_size)

    def with_own_settings(
        self, batches: Batches, cache: TokenCache, tokens: TokenIds, length: int, own_shares: Shares | None
    ) -> Batches:
        """Return batches that `continued` returned, with this noise and the shares of a stage in place of theirs."""
        parts = tuple(
            replace(part, corruption=self._noise(cache, name, tokens, length))
            for name, part in zip(cache.corpora, batches.sequence.by_corpus(), strict=True)
        )
        if not isinstance(batches.sequence, MixedRows):
            self._check_shares(cache, own_shares)
            return replace(batches, sequence=parts[0])
        rows, share = replace(batches.sequence, parts=parts), self._shares(cache, parts, own_shares)
        if share == rows.shares:
            return replace(batches, sequence=rows)
        # Each corpus continues in its own order.
        return replace(batches, sequence=MixedRows(parts, share, rows.rows_before(batches.first)), first=0)

    def held_out(
        self,
        cache: TokenCache,
        tokens: TokenIds,
        length: int,
        batch_size: int,
        *,
        split: str = "validation",
        at_most: int | None = None,
    ) -> "HeldOut | None":
        """Return the rows of a split, each once; None if the split has too few documents.

        If there are more than `at_most` batches, the rows are a sample of all corpora, drawn without replacement and the same in
        every run.
        """
        parts = {
            name: self._part(cache, name, tokens, length, _HELD_OUT_SEED, 0, split)
            for name in cache.corpora
            if cache.counts(split, name)["documents"] >= self.least_documents(cache.has_pairs(name))
        }
        if not parts:
            return None
        in_order = tuple(replace(part, order=Contiguous(len(part.examples))) for part in parts.values())
        rows = ConcatenatedRows(in_order)
        count = len(rows)
        if at_most is not None and at_most * batch_size < count:
            # In order, the first rows would all be from the first corpus, or the fullest ones if they are packed.
            rows, count = replace(rows, key=_HELD_OUT_SEED), at_most * batch_size
        elif self.has_similar_lengths and len(parts) == 1 and isinstance(in_order[0].examples, LabelledExamples):
            key = self._key(_HELD_OUT_SEED, _BATCHES, 0)
            return HeldOut(similar_length_batches(in_order[0], length, batch_size, key), count, batch_size)
        return HeldOut(Batches(rows, batch_size), count, batch_size, _by_corpus(rows, tuple(parts), count, batch_size))

    @property
    def has_similar_lengths(self) -> bool:
        """True if the rows of a batch have similar lengths, unless they are of several corpora."""
        return self.similar_lengths and self.rows.is_labelled and self.order == "shuffled"

    @staticmethod
    def _key(seed: int, use: int, stage: int, corpus: int = 0) -> int:
        """Return the key of one use of the seed in a stage."""
        return int(keys.fold(seed, use, stage, corpus)[0])

    def _part(
        self,
        cache: TokenCache,
        name: str,
        tokens: TokenIds,
        length: int,
        seed: int,
        stage: int,
        split: str,
        blocks: Blocks | None = None,
    ) -> CorruptedRows:
        """Return the shuffled rows of one corpus, planned by blocks if there are any and it is large."""
        number, corpora = cache.corpora.index(name), len(cache.corpora)
        stored = cache.stored_documents(split, name, tokens.size)
        self._check_units(stored.name, has_units=stored.units is not None)
        plan, order, noise = (self._key(seed, use, stage, number) for use in (_PLAN, _ORDER, _NOISE))
        examples: Examples
        rows_order: RowOrder
        if blocks is not None and blocks.apply_to(stored, corpora):
            examples = in_blocks = BlockExamples(
                stored, lambda documents, key: self.examples(documents, length, key, tokens), blocks, corpora, plan
            )
            rows_order = BlockOrder(in_blocks, order)
        else:
            examples = self.examples(cache.documents(split, name, tokens.size), length, plan, tokens)
            rows_order = Shuffled(len(examples), order)
        return CorruptedRows(rows_order, examples, self._noise(cache, name, tokens, length), tokens, noise, self.dupe_factor)

    def _noise(self, cache: TokenCache, name: str, tokens: TokenIds, length: int) -> Corruption:
        """Return the noise of a corpus, fitted to its text."""
        if cache.has_pairs(name):
            return FeatureSubset(tuple(self.features(length)))
        corruption = self.corruption.fit(lambda: cache.stored_documents("train", name, tokens.size).token_counts(tokens.size))
        if self.pairs.packed and self.rows.most_examples(length) == 1:
            return WithPositions(corruption, tuple(self.features(length)))
        return corruption


@dataclass(frozen=True)
class HeldOut:
    """Rows for evaluation.

    Attributes:
      source: Batches of the rows; the last one is filled up with rows of weight 0.
      rows: Number of rows without those that fill up the last batch.
      batch_size: Rows of a batch.
      corpora: The same rows by corpus, each in batches of its own; empty if all are of one corpus.
    """

    source: Batches
    rows: int
    batch_size: int
    corpora: "dict[str, HeldOut]" = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Number of batches."""
        return -(-self.rows // self.batch_size)


def _by_corpus(rows: ConcatenatedRows, names: Sequence[str], count: int, batch_size: int) -> dict[str, HeldOut]:
    """Return the first `count` rows by corpus, in the same order; corpora without any are left out."""
    if len(names) == 1:
        return {}
    places = np.arange(count, dtype=np.int64)
    part = rows.corpus_at(places)
    chosen = {name: places[part == number] for number, name in enumerate(names)}
    return {
        name: HeldOut(Batches(SelectedRows(rows, own), batch_size), len(own), batch_size)
        for name, own in chosen.items()
        if len(own)
    }
