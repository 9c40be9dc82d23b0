"""Probing of a network: features, probes and scores of all tasks, for several of its parameters."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from tqdm import tqdm

from bertfam.analysis.probes.data import ProbeData, encode_targets
from bertfam.analysis.probes.features import LayerFeatures, standardize
from bertfam.analysis.probes.report import describe_data, describe_scores
from bertfam.analysis.probes.targets import TargetSentence
from bertfam.analysis.probes.training import ProbeSettings, ProbeTrainer
from bertfam.analysis.subject import Subject
from bertfam.errors import UserError
from bertfam.plurals import plural

MOST_BYTES = 4 << 30  # of the features of a task
_ROWS = 32  # rows at a time

Splits = tuple[Sequence[TargetSentence], Sequence[TargetSentence]]  # sentences to train on, and held-out ones


@dataclass(frozen=True)
class Probing:
    """Tasks whose probes are trained and scored, for parameters of one network.

    Attributes:
      settings: the probes, and the settings of their training.
      features: computes hidden states.
      data: targets by task.
      trainers: trainers by task.
    """

    settings: ProbeSettings
    features: LayerFeatures
    data: Mapping[str, ProbeData]
    trainers: Mapping[str, ProbeTrainer]

    @classmethod
    def create(cls, subject: Subject, sentences: Mapping[str, Splits], settings: ProbeSettings) -> Self:
        """Encode the sentences of each task, those to train on and those held out.

        Raises:
          UserError: a task has nothing to probe, or its features would not fit in memory.
        """
        data = {task: encode_targets(task, subject.rows, *both) for task, both in sentences.items()}
        features = LayerFeatures(subject, _ROWS)
        for task, own in data.items():
            if (size := _bytes(features, own)) > MOST_BYTES:
                fewer = int(max(map(len, sentences[task])) * MOST_BYTES / size)
                too_large = f"the features of --{task} would take {size / 1e9:.1f} GB, more than {MOST_BYTES / 1e9:.1f} GB"
                raise UserError(f"{too_large}: use fewer sentences, by --limit={fewer}")
        trainers = {task: ProbeTrainer(own, features.shape, settings) for task, own in data.items()}
        return cls(settings, features, data, trainers)

    def plan(self, count: int) -> Iterator[str]:
        """Yield the lines of a plan for `count` parameters."""
        layers, embed = self.features.shape
        yield (
            f"{self.settings.probe} probes of {layers - 1} layers and the embeddings, {embed} wide, with "
            f"{plural(len(self.settings.seeds), 'seed')} on {plural(count, 'set')} of parameters"
        )
        for task, own in self.data.items():
            trainer = self.trainers[task]
            counts = (
                f"{plural(len(own.train.labels), 'target')} and {len(own.held_out.labels):,} held out, {len(own.classes)} labels"
            )
            size = f"features of {_bytes(self.features, own) / 1e9:.2f} GB"
            yield f"{task}: {counts}; {size}; {trainer.count} probes at once, {plural(trainer.updates, 'update')}"

    def report(self, parameters: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Train and score the probes of all tasks on each of the parameters, by name; return JSON values."""
        tasks: dict[str, Any] = {task: describe_data(own) | {"scores": {}} for task, own in self.data.items()}
        for name, params in parameters:
            for task in self.data:
                tasks[task]["scores"][name] = self._scores(params, task, f"{task}, {name}")
        return {"settings": asdict(self.settings), "tasks": tasks}

    def _scores(self, params: Any, task: str, progress: str) -> dict[str, Any]:
        own = self.data[task]
        train, held_out = (self.features.compute(params, split, progress) for split in (own.train, own.held_out))
        standardize(train, held_out)
        seeds = tqdm(self.settings.seeds, progress, unit=" seeds", disable=None, leave=False)
        return describe_scores([self.trainers[task].scores(train, held_out, seed) for seed in seeds])


def _bytes(features: LayerFeatures, data: ProbeData) -> int:
    return features.size(data.train) + features.size(data.held_out)
