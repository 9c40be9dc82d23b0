"""Probe (Alain and Bengio 2016): a logistic regression on frozen features, fitted on labelled texts and scored on others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from typing_extensions import override

from bertfam.data.corpora.file_corpus import is_held_out
from bertfam.data.corpora.labelled.labelled_corpus import name_of
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.training.evaluations.base import Evaluation, Features


class ProbeTexts(NamedTuple):
    """Texts with the names of their classes."""

    texts: Sequence[Sequence[str]]
    labels: Sequence[str]


@dataclass(frozen=True)
class FeatureProbe(Evaluation):
    """Accuracy and Matthews' correlation of scikit-learn's LogisticRegression on the features of texts, scaled to unit variance.

    Attributes:
      corpus: Labelled texts of one class each; without held-out files a fixed tenth of them is held out.
      every: Updates between two evaluations.
      name: Name before those of its metrics.
      at_most: Training texts, and held-out texts, that are used: the first ones.
      regularization: Weight of the squared norm of the weights; scikit-learn's 1 / C.
    """

    corpus: LabelledFiles
    every: int = 1000
    name: str = "probe"
    at_most: int = 2000
    regularization: float = 1.0

    def __post_init__(self) -> None:
        if self.corpus.kind != "class" or self.corpus.label is None:
            raise UserError('FeatureProbe.corpus must have a class of each text: LabelledFiles.kind = "class", with a label')
        for field in ("every", "at_most", "regularization"):
            if not 0 < getattr(self, field) < math.inf:
                raise UserError(f"FeatureProbe.{field} is {getattr(self, field)}: it must be a finite number above 0")

    @override
    def read(self) -> dict[str, ProbeTexts]:
        try:
            import sklearn  # noqa: F401
        except ImportError as error:
            raise UserError("FeatureProbe needs scikit-learn: pip install 'bertfam[finetune]'") from error
        content = {split: self._texts(split) for split in ("train", "validation")}
        classes = len(set(content["train"].labels))
        if classes < 2 or not content["validation"].texts:
            where = self.corpus.files("train")[0]
            counts = (
                f"{plural(classes, 'class', 'classes')} to fit and {plural(len(content['validation'].texts), 'text')} to score"
            )
            raise UserError(f"{where}: FeatureProbe has {counts}; give it more labelled texts")
        return content

    @override
    def measure(self, content: Mapping[str, ProbeTexts], features: Features) -> Mapping[str, float]:
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import matthews_corrcoef
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        train, held_out = content["train"], content["validation"]
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=1 / self.regularization, max_iter=1000))
        probe.fit(features(train.texts), train.labels)
        predicted = probe.predict(features(held_out.texts))
        right = [one == true for one, true in zip(predicted, held_out.labels, strict=True)]
        return {"accuracy": sum(right) / len(right), "mcc": float(matthews_corrcoef(held_out.labels, predicted))}

    def _texts(self, split: str) -> ProbeTexts:
        """Return the first texts of a split."""
        corpus, fraction = self.corpus, 0.0 if self.corpus.validation else self.corpus.validation_fraction
        records = ((texts, name_of(label, where)) for path in corpus.files(split) for where, texts, label in corpus.records(path))
        own = (one for one in records if bool(corpus.validation) or is_held_out(one[0], fraction) == (split == "validation"))
        pairs = list(islice(own, self.at_most))
        return ProbeTexts([texts for texts, _ in pairs], [label for _, label in pairs])
