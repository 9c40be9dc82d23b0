"""Probes of the hidden states of each layer while a run trains."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.analysis.probes.data import ProbeData, ProbeSplit, encode_targets
from bertfam.analysis.probes.features import span_states, standardize
from bertfam.analysis.probes.networks import PROBES
from bertfam.analysis.probes.probing import MOST_BYTES, Splits
from bertfam.analysis.probes.report import describe_scores
from bertfam.analysis.probes.targets import READERS, Columns, read_targets, split_targets
from bertfam.analysis.probes.training import ProbeSettings, ProbeTrainer
from bertfam.analysis.subject import TextRows, row_features
from bertfam.errors import UserError
from bertfam.suggest import did_you_mean
from bertfam.training.evaluations.base import Encoder, Evaluation, Features


class PreparedProbes(NamedTuple):
    """Targets of a task, and the trainer of its probes."""

    data: ProbeData
    trainer: ProbeTrainer


@dataclass(frozen=True)
class WordProbes(Evaluation):
    """Accuracy of a probe of each layer, on labelled words or spans; see `bertfam analyze probes`.

    Its metrics are `layer_0`, the embeddings, to `layer_N`; `mix`, of the mix of all layers; `mix_selectivity`, that less the
    accuracy on the control task; and `centre_of_gravity`, the mean layer of the mix. Of several seeds they are means.

    Attributes:
      train: File of sentences to train on.
      held_out: File of sentences to score on; None: a tenth of those of `train`.
      task: Kind of the targets: "tags", "relations", "entities" or "edges".
      every: Updates between two evaluations.
      name: Name before those of its metrics.
      limit: First sentences of each file that are used.
      probe: Network of the probes: "linear", "mlp" or "edge".
      epochs: Passes over the targets.
      seeds: Seeds of the probes.
    """

    train: str
    held_out: str | None = None
    task: str = "tags"
    every: int = 1000
    name: str = "probes"
    limit: int = 500
    probe: str = "linear"
    epochs: int = 10
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for field, known in (("task", READERS), ("probe", PROBES)):
            if (value := getattr(self, field)) not in known:
                raise UserError(f"WordProbes.{field} is {value!r}, none of {', '.join(known)}{did_you_mean(value, known)}")
        for field in ("every", "limit", "epochs"):
            if not 0 < getattr(self, field) < math.inf:
                raise UserError(f"WordProbes.{field} is {getattr(self, field)}: it must be above 0")
        if not self.seeds:
            raise UserError("WordProbes.seeds is empty: give one seed or more")

    @override
    def read(self) -> Splits:
        sentences = read_targets(self.task, self.train, Columns(), self.limit)
        if self.held_out is None:
            return split_targets(self.task, sentences)
        return sentences, read_targets(self.task, self.held_out, Columns(), self.limit)

    @override
    def prepare(self, content: Splits, encoder: Encoder) -> PreparedProbes:
        frame = encoder.vocabulary.token_ids.frame
        assert frame is not None  # of all vocabularies with [CLS]
        data = encode_targets(self.task, TextRows(encoder.vocabulary, frame, encoder.length), *content)
        size = 4 * math.prod(encoder.shape) * (data.train.token_count + data.held_out.token_count)
        if size > MOST_BYTES:
            most = f"more than {MOST_BYTES / 1e9:.1f} GB: lower WordProbes.limit"
            raise UserError(f"the hidden states of WordProbes take {size / 1e9:.1f} GB, {most}")
        settings = ProbeSettings(self.probe, epochs=self.epochs, seeds=self.seeds)
        return PreparedProbes(data, ProbeTrainer(data, encoder.shape, settings))

    @override
    def measure(self, content: PreparedProbes, features: Features) -> Mapping[str, float]:
        data, trainer = content
        splits = (data.train, data.held_out)
        train, held_out = (span_states(_batches(split, features), split, features.encoder.shape) for split in splits)
        standardize(train, held_out)
        scores = describe_scores([trainer.scores(train, held_out, seed) for seed in self.seeds])
        layers = np.mean(scores["accuracy"], axis=0).tolist()
        means = {name: float(np.mean(scores[name])) for name in ("mix", "mix_selectivity", "centre_of_gravity")}
        return {f"layer_{layer}": value for layer, value in enumerate(layers)} | means


def _batches(split: ProbeSplit, features: Features) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the numbers of the rows of batches, and their hidden states float32[rows, length, layers + 1, embed]."""
    encoder = features.encoder
    pad = encoder.vocabulary.token_ids.pad
    for begin in range(0, len(split.rows), encoder.batch_size):
        rows = split.rows[begin : begin + encoder.batch_size]
        yield np.arange(begin, begin + len(rows)), features.hidden_states(row_features(rows, pad, encoder.length))
