"""Loss of masked tokens on one noise that is common to all arms."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from bertfam.api import Model, load_networks
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.rows.running_text import FullSentences
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import UserError
from bertfam.evaluation.suites.results import Result
from bertfam.models.network import Kind
from bertfam.objectives.objective import cross_entropies
from bertfam.storage.paths import to_path
from bertfam.studies.scores.score import Score, Trained
from bertfam.training.run import Run

_ROWS = 32  # of a batch


@dataclass(frozen=True)
class MaskedLoss(Score):
    """Cross-entropy and accuracy of a masked language model on held-out rows of whole sentences, whatever its own noise is.

    Models run in full float32 without dropout. Of several networks the first with a masked-LM head counts, which in ELECTRA is
    the generator.

    Attributes:
      rate: share of the tokens to predict, of which 80 % are masked, 10 % random and 10 % kept (Devlin et al. 2019).
      length: tokens of a row.
      rows: largest number of rows.
    """

    rate: float = 0.15
    length: int = 128
    rows: int = 1024

    name: ClassVar[str] = "masked_loss"
    metrics: ClassVar[tuple[str, ...]] = ("masked_loss", "masked_accuracy")
    compares_vocabularies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows {self.rows} must be at least 1")
        if not 0 < self.rate < 1:
            raise ValueError(f"rate {self.rate} must be above 0 and below 1")

    @override
    def check(self, arm: str, run: Run) -> None:
        kinds: set[Kind] = {network.kind for network in run.objective.networks.values()}
        if "encoder" not in kinds:
            raise UserError(f"MaskedLoss is of masked language models, and arm {arm!r} has none; use @BitsPerByte()")
        self._data(run.data).check_length(self.length)
        shortest = min(getattr(network, "max_length", None) or self.length for network in run.objective.networks.values())
        if shortest < self.length:
            raise UserError(f"MaskedLoss.length is {self.length}, but the model of arm {arm!r} reads {shortest} tokens: lower it")

    def _data(self, data: TextData) -> TextData:
        return TextData(
            data.corpus, data.vocabulary, data.cache_dir, rows=FullSentences(), corruption=BertMasking(rate=self.rate)
        )

    @override
    def measure(self, trained: Trained) -> Result:
        networks = load_networks(trained.model_dir).values()
        model = next((network for network in networks if isinstance(network, Model) and "mlm_head" in network.params), None)
        if model is None:
            raise UserError(f"{trained.model_dir} has no masked-LM head, which MaskedLoss requires; use @BitsPerByte()")
        cache = TokenCache(to_path(str(trained.data.cache_dir)))
        most = max(1, self.rows // _ROWS)
        held_out = self._data(trained.data).held_out(cache, model.vocabulary.token_ids, self.length, _ROWS, at_most=most)
        if held_out is None:
            raise UserError(f"{cache.directory} has too little held-out text for rows of {self.length} tokens")
        sums = np.concatenate([_sums(model, held_out.source.rows(step, 0, _ROWS)) for step in range(held_out.steps)])
        losses, correct, weights = sums[: held_out.rows].T
        total = weights.sum()
        scores = {"masked_loss": losses.sum() / total, "masked_accuracy": correct.sum() / total}
        outcomes = losses * len(losses) / total
        settings = {"rows": held_out.rows, "length": self.length, "rate": self.rate}
        return Result({name: float(value) for name, value in scores.items()}, tuple(outcomes.tolist()), settings)


def _sums(model: Model, rows: dict[str, np.ndarray]) -> np.ndarray:
    """Return the sums of losses, of right predictions, and of weights of each row: float64[rows, 3]."""
    positions, targets, weights = (rows[f"masked_{name}"] for name in ("positions", "target_tokens", "loss_weights"))
    segments = rows["encoder_segment_ids"]
    found = model.apply(rows["encoder_input_tokens"], segment_ids=segments, masked_positions=positions)
    sums: np.ndarray = np.asarray(_row_sums(found["mlm_logits"], targets, weights), np.float64)
    return sums


@jax.jit
def _row_sums(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> Any:
    losses, correct = cross_entropies(logits, targets, weights)
    return jnp.stack([jnp.sum(value * weights, axis=1) for value in (losses, correct, jnp.ones_like(weights))], axis=1)
