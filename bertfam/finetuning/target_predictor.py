"""Target texts that a fine-tuned encoder-decoder or causal LM generates."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from bertfam.corruption import keys
from bertfam.data.corpora.labelled.target_corpus import TargetCorpus
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.documents import Documents
from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.end_tokens import end_tokens
from bertfam.decoding.generate import Text, generate
from bertfam.decoding.stepper import Ends
from bertfam.decoding.strategies import Greedy, Limits, Strategy
from bertfam.models.language_model import LanguageModelConfig
from bertfam.sharding.mesh import MeshShape
from bertfam.training.model_dir import TrainedModel

_GREEDY = Greedy()


@dataclass(frozen=True)
class TargetPredictor:
    """Fine-tuned model that generates target texts.

    Attributes:
      config: Config of its family.
      params: Its parameters, see `bertfam.models.language_model`.
      vocabulary: Its vocabulary.
      ends: Tokens that begin and end its texts.
      corpus: The texts that it was trained on.
      data: The data of its run, which makes the rows.
      length: Tokens of a row.
      step: Step of its checkpoint.
      counts: Number of texts so far: all that were "read", and those of which a part was "cut" off.
    """

    config: LanguageModelConfig
    params: Any
    vocabulary: Vocabulary
    ends: Ends
    corpus: TargetCorpus
    data: TextData
    length: int
    step: int
    counts: Counter[str] = field(default_factory=Counter, compare=False)

    @property
    def text_length(self) -> int:
        """Tokens beyond which a text is cut off."""
        return self.length

    @property
    def cut_part(self) -> str:
        """Part of a long text that is cut off."""
        return self.data.pairs.cut_part

    def generate(self, texts: Sequence[str], strategy: Strategy | str = _GREEDY, batch_size: int = 8) -> list[Text]:
        """Generate the target of each text, from the tokens that the rows of training have; its `text` is the target alone.

        Args:
          texts: The texts, as `TargetCorpus.interpret` has them.
          strategy: See `bertfam.decoding.generate.generate`.
          batch_size: Texts at a time.
        """
        if not texts:
            return []
        limits = Limits(max_new_tokens=self.data.pairs.target_length(self.data.corruption, self.length))
        mesh = MeshShape().build() if len(jax.devices()) > 1 else None
        found = generate(self, self._prompts(texts), strategy, limits, batch_size=batch_size, mesh=mesh)
        targets = [self.vocabulary.decode(best.tokens, skip_special=True).strip() for best, *_ in found]
        return [dataclasses.replace(best, text=target) for (best, *_), target in zip(found, targets, strict=True)]

    def _prompts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the tokens from which the target of each text is predicted: int32[n] each."""
        tokens, lengths = self.vocabulary.encode_flat(list(texts))
        # Rows are of pairs: the targets, of one token each, are not part of the prompts.
        pairs = Documents(
            "the input",
            np.insert(tokens, np.cumsum(lengths), self.vocabulary.token_ids.unk),
            np.concatenate([[0], np.cumsum(np.stack([lengths, np.ones_like(lengths)], axis=1))]),
            2 * np.arange(len(texts) + 1),
            pairs=True,
        )
        indices = np.arange(len(texts))
        layout, noise = self.data.pairs, self.data.corruption
        examples = layout.plan(pairs, noise, self.length, 0, self.vocabulary.token_ids)
        self.counts.update(read=len(texts), cut=examples.cut)
        rows: Mapping[str, np.ndarray] = examples.rows(indices, keys.fold(0, indices))
        return layout.prompts(rows)


def target_predictor(opened: TrainedModel) -> TargetPredictor:
    """Return the predictor of a trained model whose corpus has targets."""
    run, vocabulary = opened.run, opened.vocabulary
    model, corpus = run.objective.model, run.data.corpus
    assert isinstance(corpus, TargetCorpus)
    data = dataclasses.replace(run.data, pairs=run.data.pairs.unpacked)
    ends = end_tokens(model, vocabulary.token_ids)
    return TargetPredictor(model, opened.params, vocabulary, ends, corpus, data, run.stages[-1].length, opened.step)
