"""Where a run's rows come from: corpus, vocabulary, cache, rows, noise."""

from dataclasses import dataclass, replace
from pathlib import Path

from bertfam.corruption import keys as random
from bertfam.corruption.masking import BertMasking
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.batches import CorruptedBatches
from bertfam.data.cache import TokenCache
from bertfam.data.order import Contiguous, Shuffled
from bertfam.data.pairs import SentencePairs
from bertfam.data.sources import Corpus
from bertfam.features import RowShape

_PLAN, _ORDER, _NOISE = range(3)
# Held-out rows and their masks are the same for every run and seed, so that losses compare.
_HELD_OUT_SEED = 0


@dataclass(frozen=True)
class TextData:
    """Running text as rows.

    Attributes:
      corpus: the text; None where `cache_dir` holds a token cache already.
      vocabulary: the folder of the vocabulary; None where `cache_dir` holds a token cache already.
      cache_dir: the token cache, built there where it is missing; None: MODEL_DIR/cache.
      rows: how documents become rows.
      corruption: the noise.
    """

    corpus: Corpus | None = None
    vocabulary: str | None = None
    cache_dir: str | None = None
    rows: SentencePairs = SentencePairs()
    corruption: BertMasking = BertMasking()

    @property
    def corpora(self) -> dict[str, Corpus]:
        """The texts by name, as the token cache keeps them; none where `corpus` is None."""
        return {} if self.corpus is None else {"text": self.corpus}

    def shape(self, length: int) -> RowShape:
        """The static sizes of rows of `length` tokens."""
        return RowShape(length, self.corruption.predictions(length))

    def cache_directory(self, model_dir: str | Path) -> Path:
        """Where the token cache of a run in MODEL_DIR lies."""
        return Path(self.cache_dir) if self.cache_dir else Path(model_dir) / "cache"

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
    ) -> CorruptedBatches:
        """The shuffled batches of one stage, without end; every epoch has a new order and new noise."""
        examples = self.rows.examples(cache.documents(split, "text"), length, _key(seed, _PLAN, stage), tokens)
        order = Shuffled(len(examples), batch_size, _key(seed, _ORDER, stage))
        return CorruptedBatches(order, examples, self.corruption, tokens, _key(seed, _NOISE, stage))

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
        """A split's rows, each once, at most so many batches; None where the split has too few documents."""
        if cache.counts(split, "text")["documents"] < self.rows.least_documents:
            return None
        shuffled = self.training(cache, tokens, length, batch_size, _HELD_OUT_SEED, split=split)
        order = Contiguous(len(shuffled.examples), batch_size)
        return HeldOut(replace(shuffled, order=order), min(order.steps, at_most or order.steps), batch_size)


@dataclass(frozen=True)
class HeldOut:
    """Rows to evaluate on: `steps` batches; the last is filled with rows of weight 0."""

    source: CorruptedBatches
    steps: int
    batch_size: int


def _key(seed: int, use: int, stage: int) -> int:
    return int(random.fold(seed, use, stage)[0])
