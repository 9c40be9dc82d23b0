"""Run by test_objective_meshes.py in a process of its own, with eight simulated devices: one JSON object on stdout."""

import dataclasses
import gc
import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from flax import linen as nn

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import tiny  # noqa: E402
import xla  # noqa: E402
from entity_folders import write_folder  # noqa: E402
from test_distillation import ALL, TEACHER, TEACHER_MODEL, random_like  # noqa: E402

from bertfam.corruption.entities import EntityMasking  # noqa: E402
from bertfam.corruption.masked_lm.masking import BertMasking  # noqa: E402
from bertfam.corruption.masked_lm.shuffled_windows import ShuffledWindows  # noqa: E402
from bertfam.corruption.masked_lm.span_selection import WordSpans  # noqa: E402
from bertfam.corruption.next_tokens import NextTokens  # noqa: E402
from bertfam.corruption.permutation_noise import PermutationNoise  # noqa: E402
from bertfam.corruption.skip_grams import SkipGrams  # noqa: E402
from bertfam.corruption.t5.text_to_text import TextToText  # noqa: E402
from bertfam.data.rows.labelled.passage_texts import PassageLabels, PassageTexts  # noqa: E402
from bertfam.data.rows.labelled.question_answers import QuestionAnswerRows, QuestionAnswers  # noqa: E402
from bertfam.data.rows.recurrent_pairs import RecurrentPairs  # noqa: E402
from bertfam.data.rows.running_text import Chunks, FullSentences  # noqa: E402
from bertfam.data.rows.sentence_pairs import SentencePairs  # noqa: E402
from bertfam.data.text_data import TextData  # noqa: E402
from bertfam.layers.execution import Execution  # noqa: E402
from bertfam.models.albert import AlbertConfig  # noqa: E402
from bertfam.models.bert import BertConfig  # noqa: E402
from bertfam.models.characters import CharacterCnn  # noqa: E402
from bertfam.models.electra import ElectraConfig  # noqa: E402
from bertfam.models.elmo import BilmConfig  # noqa: E402
from bertfam.models.entity_ernie import EntityErnieConfig  # noqa: E402
from bertfam.models.gpt2 import Gpt2Config  # noqa: E402
from bertfam.models.modernbert import ModernBertConfig  # noqa: E402
from bertfam.models.t5 import T5Config  # noqa: E402
from bertfam.models.word2vec import Word2VecConfig  # noqa: E402
from bertfam.models.xlnet import XLNetConfig  # noqa: E402
from bertfam.objectives.causal_lm import CausalLm  # noqa: E402
from bertfam.objectives.electra import Electra  # noqa: E402
from bertfam.objectives.permutation_lm import PermutationLm  # noqa: E402
from bertfam.objectives.representations.bilm import Bilm  # noqa: E402
from bertfam.objectives.representations.entities import MlmNspDea  # noqa: E402
from bertfam.objectives.representations.skip_gram import SkipGram  # noqa: E402
from bertfam.objectives.retrieval.dual_encoder import DualEncoder  # noqa: E402
from bertfam.objectives.retrieval.rag import Rag  # noqa: E402
from bertfam.objectives.retrieval.realm import Realm  # noqa: E402
from bertfam.objectives.retrieval.retromae import RetroMae  # noqa: E402
from bertfam.objectives.sequence_to_sequence import SequenceToSequence  # noqa: E402
from bertfam.objectives.spanbert import MlmSbo  # noqa: E402
from bertfam.objectives.structbert import MlmStructure  # noqa: E402
from bertfam.retrieval.index import Index  # noqa: E402
from bertfam.sharding.mesh import MeshShape  # noqa: E402
from bertfam.sharding.named_shardings import batch_shardings, padded_decoder_rows, state_shardings  # noqa: E402
from bertfam.training.logs.metrics import means  # noqa: E402
from bertfam.training.prefetch import global_batch  # noqa: E402
from bertfam.training.run import Run  # noqa: E402
from bertfam.training.stages import Stage  # noqa: E402
from bertfam.training.stages.phases import Phase  # noqa: E402
from bertfam.training.state import TrainState  # noqa: E402
from bertfam.training.step import make_gradient  # noqa: E402

LENGTH, BATCH, PLACES, QUERY, PASSAGES_OF_INDEX = 32, 8, 3, 8, 100
EIGHT_DEVICES = MeshShape(data=1, fsdp=2, tensor=2, sequence=2)
SIZES = {"vocab_size": tiny.VOCABULARY, "num_layers": 2, "hidden_size": 16, "num_heads": 2}
LONGEST = {"max_length": 32}
NARROW = SIZES | LONGEST | {"feed_forward_size": 32, "embedding_size": 8}
# A single layer outside of a loop compiles in half the time. Other cases, and tests/sharding/test_meshes.py, have loops.
ONE_LAYER, UNROLLED = {"num_layers": 1}, Execution(layers="unroll")
TEXT = TextData(rows=FullSentences())
SPANS = BertMasking(choice=WordSpans(), boundaries=True)
SHUFFLED = TextData(rows=SentencePairs(relation="structure"), corruption=BertMasking(shuffling=ShuffledWindows()))
CHARACTERS = CharacterCnn(filters=((1, 8), (3, 8)), character_size=4, highways=1, longest=6)
LSTMS = BilmConfig(
    tiny.VOCABULARY,
    hidden_size=16,
    dropout_rate=0.0,
    filters=CHARACTERS.filters,
    character_size=CHARACTERS.character_size,
    highways=CHARACTERS.highways,
    longest_word=CHARACTERS.longest,
    spelling=CHARACTERS.spell([f"word {number}" for number in range(tiny.VOCABULARY)], {}),
)
ALL_TOKENS = BertMasking(rate=1.0, mask_share=0.0, random_share=0.0)
CASES = {
    # objective, rows, microbatches on eight devices
    "distillation": (
        dataclasses.replace(ALL, teacher=dataclasses.replace(TEACHER, model=dataclasses.replace(TEACHER_MODEL, **ONE_LAYER))),
        TEXT,
        1,
    ),
    # Each microbatch has its own dropout, so this objective has none.
    "structure in microbatches": (MlmStructure(AlbertConfig(**NARROW)), SHUFFLED, 4),
    "sbo of modernbert": (
        MlmSbo(
            ModernBertConfig(**SIZES | ONE_LAYER, **LONGEST, feed_forward_size=16, window=4, layer_types=("local",)),
            execution=UNROLLED,
            places=PLACES,
            place_size=6,
        ),
        dataclasses.replace(TEXT, corruption=SPANS),
        1,
    ),
    # The dropout of encoders has tests in tests/sharding/test_meshes.py.
    "decoder": (
        CausalLm(Gpt2Config(**SIZES | ONE_LAYER, **LONGEST, feed_forward_size=32, dropout_rate=0.1), execution=UNROLLED, chunk=8),
        TextData(rows=Chunks(), corruption=NextTokens()),
        1,
    ),
    # Two devices cannot share 7 targets, so that rows are padded to 8, and dropout would not be the same.
    "padded encoder_decoder": (
        SequenceToSequence(
            T5Config(**SIZES | ONE_LAYER, head_dim=8, feed_forward_size=32, dropout_rate=0.0),
            execution=UNROLLED,
            z_loss=1e-2,
            label_smoothing=0.1,
            chunk=2,
        ),
        TextData(corruption=TextToText(target_tokens=7)),
        1,
    ),
    # Sampling has the same random bits on every mesh, as dropout has.
    "electra": (
        Electra(ElectraConfig(**NARROW | ONE_LAYER, dropout_rate=0.0), execution=UNROLLED, generator_width=0.5),
        TEXT,
        1,
    ),
    "retromae": (
        RetroMae(
            BertConfig(**SIZES | LONGEST | ONE_LAYER, feed_forward_size=32, dropout_rate=0.0, attention_dropout_rate=0.0),
            execution=UNROLLED,
            chunk=16,
        ),
        dataclasses.replace(TEXT, corruption=BertMasking(word_numbers=True)),
        1,
    ),
    # The passages and the hard negatives of the whole batch are negatives, whatever the mesh and the pieces.
    "dual encoder in microbatches": (
        DualEncoder(
            BertConfig(**SIZES | LONGEST | ONE_LAYER, feed_forward_size=32, dropout_rate=0.0, attention_dropout_rate=0.0),
            execution=UNROLLED,
            query_length=QUERY,
            passages=2,
            projection=16,
            temperature=0.01,
        ),
        TextData(rows=PassageTexts(QUERY), corruption=PassageLabels()),
        2,
    ),
    # The index is divided over all devices, and a block of it is embedded in the step.
    "realm in microbatches": (
        Realm(
            BertConfig(
                **SIZES | {"max_length": 64} | ONE_LAYER, feed_forward_size=32, dropout_rate=0.0, attention_dropout_rate=0.0
            ),
            execution=UNROLLED,
            passages=40,
            candidates=3,
            passage_length=20,
            spare=1,
            refresh=4,
            projection=16,
        ),
        TEXT,
        2,
    ),
    "permutation": (
        PermutationLm(XLNetConfig(**SIZES | ONE_LAYER, **LONGEST, feed_forward_size=32), execution=UNROLLED, memory_length=6),
        TextData(rows=RecurrentPairs(), corruption=PermutationNoise(), order="streams"),
        1,
    ),
    "bidirectional LSTMs over characters": (Bilm(LSTMS, chunk=8), dataclasses.replace(TEXT, corruption=ALL_TOKENS), 1),
    "skip-gram": (
        SkipGram(Word2VecConfig(tiny.VOCABULARY, hidden_size=16), negatives=3),
        dataclasses.replace(TEXT, corruption=SkipGrams(negatives=3)),
        2,
    ),
}


def entity_case(folder):
    """Return the case of entities, with two of them in `folder`."""
    write_folder(Path(folder), [(5,), (6,)], tiny.VOCABULARY, vector_size=8)
    model = EntityErnieConfig(
        **SIZES | LONGEST, feed_forward_size=32, text_layers=0, entity_size=8, entity_heads=2, dropout_rate=0.0
    )
    return MlmNspDea(model, execution=UNROLLED, entities=folder), TextData(corruption=EntityMasking(entities=folder)), 1


def rag_case(folder):
    """Return the case of retrieval-augmented generation, with an index of some passages in `folder`."""
    Index(Path(folder), PASSAGES_OF_INDEX, 16, PASSAGES_OF_INDEX, {}).create()
    model = BertConfig(**SIZES | LONGEST | ONE_LAYER, feed_forward_size=32, dropout_rate=0.0, attention_dropout_rate=0.0)
    generator = T5Config(**SIZES | ONE_LAYER, head_dim=8, feed_forward_size=32, dropout_rate=0.0)
    encoder = DualEncoder(model, query_length=QUERY, projection=None, temperature=0.5)
    lengths = {"passages": 3, "passage_length": LENGTH}
    objective = Rag(generator, encoder, folder, marginal="token", **lengths, execution=UNROLLED)
    sizes = {"question_length": QUERY, "target_tokens": 6}
    return objective, TextData(rows=QuestionAnswers("", **sizes), corruption=QuestionAnswerRows(**sizes)), 2


def random_batch(run, seed):
    """Return a random batch with all features that the objective reads."""
    shape, generator = run.shape(0), np.random.default_rng(seed)
    known = tiny.batch(BATCH, shape, seed=seed, predictions=[2, 0, 1, 0, 2, 0, 0, 2])
    used = known["masked_loss_weights"]
    features = {}
    for name, spec in run.objective.features(shape).items():
        if name in known and known[name].shape[1:] == spec.shape:
            features[name] = known[name]
        elif name == "shuffled_loss_weights":
            features[name] = used * (np.arange(shape.predictions) == 0)
        elif name.endswith("_weights"):
            features[name] = used if spec.shape == used.shape[1:] else np.ones((BATCH, *spec.shape), np.float32)
        else:
            limit = LENGTH // 2 if name.endswith("_positions") else PLACES if name.endswith("_offsets") else 2
            limit = QUERY if name == "sequence_start_positions" else limit
            least = int(name == "entity_targets")
            features[name] = generator.integers(least, least + limit, (BATCH, *spec.shape))
        features[name] = features[name].astype(spec.dtype)
    if isinstance(run.objective, DualEncoder):  # texts that are no negatives of each other, on different devices
        features = {name: np.concatenate([value[:-1], value[:1]]) for name, value in features.items()}
    return features


@dataclasses.dataclass(frozen=True)
class RandomRows:
    """Source of random batches."""

    run: Run

    def rows(self, step, start, stop):
        return {name: value[start:stop] for name, value in random_batch(self.run, step).items()}


def gradient(run, mesh_shape, count, boxed):
    """Return the gradient of a batch, its metrics, and the mesh axes that the objective's aux is split over."""
    mesh = mesh_shape.build(jax.devices()[:count])
    shardings = state_shardings(boxed, mesh)
    params, carry, aux = jax.device_put(random_like(nn.meta.unbox(boxed), 4), shardings)
    zero = np.zeros((), np.int32)
    features = padded_decoder_rows(run.objective.features(run.shape(0)), mesh)
    batch = global_batch(RandomRows(run), 0, BATCH, features, batch_shardings(features, mesh))
    compute = make_gradient(Phase.of(run.objective), microbatches=run.microbatch_count)
    with jax.set_mesh(mesh), nn.logical_axis_rules(mesh_shape.rules.items()):
        compiled = jax.jit(compute, out_shardings=(shardings[0], None, None))
        result, _, metrics = compiled(TrainState(zero, params, {}, carry, aux, {}, zero), batch, tiny.SEED)
    axes = {axis for leaf in jax.tree.leaves(aux) for axis in leaf.sharding.spec if axis}
    return jax.device_get(result), means([metrics]), sorted(map(str, axes))


def compare(objective, data, microbatches):
    """Return the metrics on one device and on eight, the largest gradient and difference, and the axes of aux."""
    run = Run(objective=objective, data=data, stages=(Stage(1, LENGTH, BATCH),))
    boxed = jax.eval_shape(lambda key: objective.init(key, run.shape(0)), jax.random.key(0))
    expected, alone, _ = gradient(run, MeshShape(), 1, boxed)
    split, metrics, axes = gradient(dataclasses.replace(run, microbatches=microbatches), EIGHT_DEVICES, 8, boxed)
    leaves = list(zip(*map(jax.tree.leaves, (expected, split)), strict=True))
    return {
        "one": alone,
        "eight": metrics,
        "largest": max(float(np.abs(left).max()) for left, _ in leaves),
        "difference": max(float(np.abs(left - right).max()) for left, right in leaves),
        "axes": axes,
    }


if __name__ == "__main__":
    xla.share_cache()
    gc.set_threshold(100_000, 50, 1000)  # as in conftest.py
    with tempfile.TemporaryDirectory() as directory:
        cases = CASES | {"entities": entity_case(directory), "rag in microbatches": rag_case(f"{directory}/index")}
        print(json.dumps({name: compare(*case) for name, case in cases.items()}))
