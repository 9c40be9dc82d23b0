"""Run files of the model families, compared with the published settings, and rows without the inputs of an objective."""

import re
from pathlib import Path

import jax
import pytest

from bertfam.config import load
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import RareTokens
from bertfam.corruption.masked_lm.shuffled_windows import ShuffledWindows
from bertfam.corruption.masked_lm.span_selection import WordNgrams, WordSpans
from bertfam.corruption.masked_lm.units import Units
from bertfam.corruption.next_tokens import NextTokens
from bertfam.corruption.permutation_noise import PermutationNoise
from bertfam.data.rows.recurrent_pairs import RecurrentPairs
from bertfam.data.rows.running_text import Chunks, DocSentences, FullSentences
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.errors import UserError
from bertfam.models.albert import AlbertConfig
from bertfam.models.bert import BertConfig
from bertfam.models.distilbert import DistilBertConfig
from bertfam.models.ernie import ErnieConfig
from bertfam.models.gpt import GptConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.opt import OptConfig
from bertfam.models.palm import PalmConfig
from bertfam.models.roberta import RobertaConfig
from bertfam.objectives.albert import MlmSop
from bertfam.objectives.bert import MlmNsp
from bertfam.objectives.causal_lm import CausalLm
from bertfam.objectives.distillation import Distillation
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.permutation_lm import PermutationLm
from bertfam.objectives.spanbert import MlmSbo
from bertfam.objectives.structbert import MlmStructure
from bertfam.training.optimizers import Adafactor, AdamW, BertAdam, Lamb
from bertfam.training.schedules import CosineDecay, LinearDecay


def test_albert_run_has_the_published_settings():
    run = load(["runs/albert_base.gin"]).build("Run")
    assert run.objective.model == AlbertConfig() and type(run.objective) is MlmSop
    assert run.data.rows == SentencePairs(0.1, relation="order")
    assert run.data.corruption == BertMasking(choice=WordNgrams(), max_predictions=20)
    assert type(run.optimizer) is Lamb and not run.optimizer.bias_correction
    schedule = run.optimizer.schedule
    assert (schedule.peak, schedule.warmup_steps, schedule.variant) == (1.76e-3, 3125, "bert")
    assert [(stage.steps, stage.batch_size, stage.length) for stage in run.stages] == [(125_000, 4096, 512)]


@pytest.mark.parametrize(
    ("files", "steps", "parameters"),
    [
        (["runs/bert_base.gin"], [(900_000, 128), (100_000, 512)], 110.16),
        (["runs/scibert_base.gin"], [(900_000, 128), (100_000, 512)], 110.16),
        (["runs/legal_bert.gin"], [(1_000_000, 512)], 110.16),
        (["runs/legal_bert.gin", "models/legal_bert_small.gin"], [(1_000_000, 512)], 35.40),
    ],
)
def test_bert_and_domain_bert_runs_have_the_published_settings(files, steps, parameters):
    """Count the parameters in millions with 30,522 pieces."""
    run = load(files).build("Run").sized(30522)
    assert type(run.objective) is MlmNsp and run.data.rows == SentencePairs() and type(run.optimizer) is BertAdam
    assert [(stage.steps, stage.length) for stage in run.stages] == steps and {stage.batch_size for stage in run.stages} == {256}
    assert (run.optimizer.schedule.peak, run.optimizer.schedule.warmup_steps) == (1e-4, 10_000)
    shapes = jax.eval_shape(lambda key: run.objective.init(key, run.shape(0))[0], jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e6 == pytest.approx(parameters, abs=0.01)


def test_roberta_run_has_the_published_settings():
    run = load(["runs/roberta_base.gin"]).build("Run")
    assert run.objective.model == RobertaConfig() and type(run.objective) is Mlm
    assert type(run.data.rows) is FullSentences and run.data.corruption == BertMasking(rounding="random")
    optimizer = run.optimizer
    assert (optimizer.b1, optimizer.b2, optimizer.epsilon, optimizer.weight_decay) == (0.9, 0.98, 1e-6, 0.01)
    assert optimizer.clip_norm is None and (optimizer.schedule.peak, optimizer.schedule.warmup_steps) == (5e-4, 10_000)
    assert [(stage.steps, stage.batch_size, stage.length) for stage in run.stages] == [(125_000, 2048, 512)]


@pytest.mark.parametrize(
    ("objective", "lines", "rows", "dupe_factor"),
    [
        ("roberta", ["TextData.dupe_factor = 10"], FullSentences(), 10),
        ("roberta", ["TextData.rows = @DocSentences()"], DocSentences(), None),
        ("mlm_nsp", ['BertMasking.rounding = "random"'], SentencePairs(), None),
        ("mlm_nsp", ['BertMasking.rounding = "random"', 'SentencePairs.unit = "sentence"'], SentencePairs(unit="sentence"), None),
    ],
)
def test_ablations_of_roberta_are_documented_and_build(objective, lines, rows, dupe_factor):
    """Use the lines that objectives/roberta.gin documents."""
    data = load(["models/roberta_base.gin", f"objectives/{objective}.gin", "runs/defaults.gin"], lines).build("Run").data
    assert (data.rows, data.dupe_factor, data.corruption) == (rows, dupe_factor, BertMasking(rounding="random"))
    documentation = (Path(__file__).parents[2] / "gin_configs/objectives/roberta.gin").read_text()
    assert all(line in documentation for line in lines)


def test_structbert_run_has_the_published_settings():
    run = load(["runs/structbert_large.gin"]).build("Run")
    assert type(run.objective) is MlmStructure and run.objective.model.num_layers == 24
    assert run.data.rows == SentencePairs(relation="structure")
    assert run.data.corruption == BertMasking(shuffling=ShuffledWindows())
    assert set(run.objective.coefficients.values()) == {1.0}


def test_spanbert_run_has_the_published_settings():
    run = load(["runs/spanbert_base.gin"]).build("Run")
    assert type(run.objective) is MlmSbo and run.objective.model == BertConfig() and run.objective.coefficients["sbo"] == 1
    assert type(run.data.rows) is DocSentences
    spans = {"choice": WordSpans(0.2, 10), "rounding": "up", "counted": "maskable", "drawn_by": "unit", "boundaries": True}
    assert run.data.corruption == BertMasking(**spans, random_tokens="text")
    optimizer = run.optimizer
    assert (optimizer.b1, optimizer.b2, optimizer.epsilon, optimizer.weight_decay) == (0.9, 0.999, 1e-8, 0.1)
    assert run.objective.places == 15
    large = load(["models/spanbert_large.gin", "objectives/mlm_sbo.gin", "runs/defaults.gin"]).build("Run").objective.model
    assert large == BertConfig(num_layers=24, hidden_size=1024, num_heads=16, feed_forward_size=4096)


def test_ernie_run_has_the_published_settings():
    run = load(["runs/ernie_base.gin"]).build("Run")
    assert type(run.objective) is MlmNsp and run.objective.model == ErnieConfig()
    assert run.data.corruption == BertMasking(choice=Units())
    assert run.optimizer == AdamW(LinearDecay(1e-4, 5_000, variant="bert"), epsilon=1e-8)
    assert [(stage.steps, stage.batch_size, stage.length) for stage in run.stages] == [(1_000_000, 256, 512)]


def test_distilbert_run_has_the_published_settings():
    run = load(["runs/distilbert_base.gin"]).build("Run")
    assert type(run.objective) is Distillation and run.objective.model == DistilBertConfig() and run.objective.teacher is None
    assert run.objective.coefficients == {"soft": 5.0, "mlm": 2.0, "cosine": 1.0, "mse": 0.0}
    assert (run.objective.temperature, run.objective.over, run.objective.layers) == (2.0, "tokens", "spread")
    assert run.data.corruption == BertMasking(choice=RareTokens(0.7), rounding="up") and type(run.data.rows) is FullSentences
    optimizer = run.optimizer
    assert (optimizer.b1, optimizer.b2, optimizer.epsilon, optimizer.weight_decay) == (0.9, 0.98, 1e-6, 0.0)
    assert (optimizer.clip_norm, optimizer.schedule.peak) == (5.0, 5e-4)
    assert optimizer.schedule.warmup_steps == run.total_steps // 20


@pytest.mark.parametrize(
    ("name", "config", "stages", "values"),
    [
        ("gpt_base", GptConfig(), [(3_000_000, 64, 512)], (CosineDecay(2.5e-4, 2_000), 0.999, 1e-8, 0.01)),
        ("gpt2_small", Gpt2Config(), [(572_000, 512, 1_024)], (CosineDecay(6e-4, 715, 0.1, 0.8667), 0.95, 1e-8, 0.1)),
        ("opt_125m", OptConfig(), [(572_000, 256, 2_048)], (LinearDecay(6e-4, 715, 0.1), 0.95, 1e-8, 0.1)),
    ],
)
def test_decoder_runs_have_the_published_settings(name, config, stages, values):
    run = load([f"runs/{name}.gin"]).build("Run")
    assert run.objective.model == config and type(run.objective) is CausalLm and run.objective.z_loss == 0
    assert type(run.data.rows) is Chunks and run.data.corruption == NextTokens()
    optimizer = run.optimizer
    assert (optimizer.schedule, optimizer.b2, optimizer.epsilon, optimizer.weight_decay) == values
    assert (optimizer.b1, optimizer.clip_norm) == (0.9, 1.0)
    assert [(stage.steps, stage.batch_size, stage.length) for stage in run.stages] == stages


def test_palm_run_has_the_published_settings():
    """Train on 780 B tokens at a rate of 1e-2, which is 1 / sqrt(update) from update 10,000 on."""
    run = load(["runs/palm_8b.gin"]).build("Run")
    assert run.objective.model == PalmConfig() and run.objective.z_loss == 1e-4
    assert run.optimizer == Adafactor(clip_norm=1.0, factored=False, clipping_threshold=None, b1=0.9)
    rate = run.optimizer.schedule.build(run.total_steps)
    assert [float(rate(update - 1)) for update in (1, 10_000, 40_000)] == pytest.approx([1e-2, 1e-2, 5e-3])
    assert [(stage.batch_size, stage.length) for stage in run.stages] == [(256, 2_048), (512, 2_048)]
    assert sum(stage.steps * stage.batch_size * stage.length for stage in run.stages) == pytest.approx(780e9, rel=1e-3)


@pytest.mark.parametrize(
    ("objective", "change", "message"),
    [
        (
            "mlm_sop",
            'SentencePairs.relation = "next"',
            "MlmSop reads sentence_order_labels, which rows of SentencePairs lack: set TextData.rows to @SentencePairs() and "
            'SentencePairs.relation to "order", or Run.objective to another (@Mlm())',
        ),
        ("mlm_structure", "TextData.rows = @FullSentences()", 'SentencePairs.relation to "structure"'),
        (
            "mlm_structure",
            "BertMasking.shuffling = None",
            "shuffled_loss_weights, .*: set BertMasking.shuffling to @ShuffledWindows()",
        ),
        ("mlm_sbo", "BertMasking.boundaries = False", "reads span_left_positions, .*: set BertMasking.boundaries to True"),
        (
            "mlm_sbo",
            "BertMasking.choice = @SingleTokens()",
            "boundaries is True, but SingleTokens may select tokens next to a unit: set choice to @WordSpans()",
        ),
        ("mlm_nsp", 'SentencePairs.relation = "order"', "MlmNsp reads next_sentence_labels"),
    ],
)
def test_missing_features_are_reported_with_a_fix(objective, change, message):
    pattern = ".*".join(map(re.escape, message.split(".*")))
    config = load(["models/bert_tiny.gin", f"objectives/{objective}.gin", "runs/defaults.gin"], [change])
    with pytest.raises(UserError, match=pattern):
        config.build("Run")


def test_xlnet_run_has_the_published_settings():
    """Count the parameters in millions with 32,000 pieces; a row's memory is 384 tokens of each of the 12 layers."""
    run = load(["runs/xlnet_base.gin"]).build("Run").sized(32_000)
    assert type(run.objective) is PermutationLm and run.objective.memory_length == 384
    assert run.data.rows == RecurrentPairs() and run.data.order == "streams" and run.data.corruption == PermutationNoise()
    assert run.shape(0).predictions == 85
    optimizer = run.optimizer
    assert type(optimizer) is BertAdam and (optimizer.epsilon, optimizer.weight_decay) == (1e-6, 0.01)
    assert optimizer.schedule == LinearDecay(4e-4, 40_000, 0.001)
    assert [(stage.steps, stage.batch_size, stage.length) for stage in run.stages] == [(500_000, 8192, 512)]
    params, carry, _ = run.initial_shapes
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6 == pytest.approx(116.75, abs=0.05)
    assert carry["rows"]["hidden"].value.shape == (8192, 12, 384, 768)
    # Two streams of 512 + 85 tokens, keys of these 512 and 384 earlier ones, and 1,408 distances.
    layer = (597 * 10 + 896 * 2 + 1408) * 768**2 + 597 * (2 * 896 + 1408) * 768
    assert run.objective.flops(run.shape(0)) == 6 * (12 * layer + 85 * 768 * 32_000)
