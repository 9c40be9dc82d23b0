"""Run by test_objective_meshes.py in a process of its own, with eight simulated devices: one JSON object on stdout."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import tiny  # noqa: E402
from test_distillation import ALL, random_like  # noqa: E402

from bertfam.corruption.masked_lm.masking import BertMasking  # noqa: E402
from bertfam.corruption.masked_lm.shuffled_windows import ShuffledWindows  # noqa: E402
from bertfam.corruption.masked_lm.span_selection import WordSpans  # noqa: E402
from bertfam.corruption.t5.span_corruption import SpanCorruption  # noqa: E402
from bertfam.data.rows.running_text import Chunks, FullSentences  # noqa: E402
from bertfam.data.rows.sentence_pairs import SentencePairs  # noqa: E402
from bertfam.data.text_data import TextData  # noqa: E402
from bertfam.models.albert import AlbertConfig  # noqa: E402
from bertfam.models.modernbert import ModernBertConfig  # noqa: E402
from bertfam.objectives.albert import MlmSop  # noqa: E402
from bertfam.objectives.mlm import Mlm  # noqa: E402
from bertfam.objectives.spanbert import MlmSbo  # noqa: E402
from bertfam.objectives.structbert import MlmStructure  # noqa: E402
from bertfam.sharding.mesh import MeshShape  # noqa: E402
from bertfam.training.logs.metrics import means  # noqa: E402
from bertfam.training.prefetch import global_batch  # noqa: E402
from bertfam.training.run import Run  # noqa: E402
from bertfam.training.stages import Stage  # noqa: E402
from bertfam.training.trainer import Trainer  # noqa: E402

LENGTH, BATCH, PLACES, EIGHT_DEVICES = 16, 8, 3, (2, 2, 2)
SIZES = {"vocab_size": tiny.VOCABULARY, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "max_length": 32}
NARROW = SIZES | {"feed_forward_size": 32, "embedding_size": 8}
BERT = tiny.objective(dropout=0.1).model
TEXT = TextData(rows=FullSentences())
SPANS = BertMasking(choice=WordSpans(), boundaries=True)
SPAN_TEXT = TextData(rows=Chunks(), corruption=SpanCorruption())
SHUFFLED = TextData(rows=SentencePairs(relation="structure"), corruption=BertMasking(shuffling=ShuffledWindows()))
CASES = {
    # objective, rows, mesh; a decoder, an encoder-decoder and ELECTRA are in tests/sharding/preset_runs.py
    "distillation": (ALL, TEXT, EIGHT_DEVICES),
    "sop": (MlmSop(AlbertConfig(**NARROW)), TextData(rows=SentencePairs(relation="order")), EIGHT_DEVICES),
    "structure": (MlmStructure(BERT), SHUFFLED, EIGHT_DEVICES),
    "sbo": (MlmSbo(BERT, places=PLACES, place_size=6), dataclasses.replace(TEXT, corruption=SPANS), EIGHT_DEVICES),
    "modernbert": (Mlm(ModernBertConfig(**SIZES, feed_forward_size=16, window=4)), TEXT, EIGHT_DEVICES),
}


def random_batch(run, seed):
    """Return a random batch with all features that the objective reads."""
    shape, generator = run.shape(0), np.random.default_rng(seed)
    known = tiny.batch(BATCH, shape, seed=seed)
    used = known["masked_loss_weights"]
    features = {}
    for name, spec in run.objective.features(shape).items():
        if name in known:
            features[name] = known[name]
        elif name == "shuffled_loss_weights":
            features[name] = used * (np.arange(shape.predictions) == shape.predictions - 1)
        elif name.endswith("_weights"):
            features[name] = used if spec.shape == used.shape[1:] else np.ones((BATCH, *spec.shape), np.float32)
        else:
            limit = LENGTH // 2 if name.endswith("_positions") else PLACES if name.endswith("_offsets") else 2
            features[name] = generator.integers(0, limit, (BATCH, *spec.shape))
        features[name] = features[name].astype(spec.dtype)
    return features


class Source:
    def __init__(self, run):
        self.run = run

    def rows(self, step, start, stop):
        return {name: value[start:stop] for name, value in random_batch(self.run, step).items()}


def losses(run, shape):
    """Return the metrics of three updates, True if aux is unchanged, and the mesh axes that aux is split over."""
    trainer = Trainer(run, MeshShape(*shape).build(jax.devices()[: int(np.prod(shape))]))
    step, _ = trainer.compile_step(0)
    aux = jax.tree.map(np.asarray, random_like(trainer.abstract_state.aux, 4))
    state = trainer.with_aux(trainer.new_state(), aux)
    program = trainer.stages[0]
    all_metrics = []
    for index in range(3):
        batch = global_batch(Source(run), index, BATCH, program.features, program.shardings)
        state, metrics = step(state, batch)
        all_metrics.append(means([metrics]))
    unchanged = jax.tree.map(lambda after, before: bool(np.array_equal(after, before)), jax.device_get(state.aux), aux)
    axes = {axis for leaf in jax.tree.leaves(state.aux) for axis in leaf.sharding.spec if axis}
    return all_metrics, all(jax.tree.leaves(unchanged)), sorted(map(str, axes))


def main():
    results = {}
    for name, (objective, data, mesh) in CASES.items():
        run = Run(objective=objective, data=data, stages=(Stage(3, LENGTH, BATCH),))
        results[name] = [losses(run, shape) for shape in ((1, 1, 1), mesh)]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
