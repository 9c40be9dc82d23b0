"""Table of bertfam's configurables, each imported when a configuration first names it.

Nothing else in bertfam registers with gin. A user's own configurables come from a module given by --module_import, which
calls `bertfam.config.register(TheirDataclass)` or decorates with `gin.configurable`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import typing
from typing import Any

import gin
from gin import config as gin_config

from bertfam import moved
from bertfam.models.families import FAMILIES, registered

# A new configurable is one line here; a new model family is one in `bertfam.models.families`.
CONFIGURABLES = (
    "bertfam.corruption.masked_lm.selection.RareTokens",
    "bertfam.corruption.masked_lm.selection.SingleTokens",
    "bertfam.corruption.masked_lm.selection.WholeWords",
    "bertfam.corruption.masked_lm.selection.WithReplacement",
    "bertfam.corruption.masked_lm.span_selection.WordNgrams",
    "bertfam.corruption.masked_lm.span_selection.WordSpans",
    "bertfam.corruption.bart.denoising.Denoising",
    "bertfam.corruption.bart.infilling.TextInfilling",
    "bertfam.corruption.masked_lm.masking.BertMasking",
    "bertfam.corruption.inverse_cloze.InverseCloze",
    "bertfam.corruption.next_tokens.NextTokens",
    "bertfam.corruption.permutation_noise.PermutationNoise",
    "bertfam.corruption.bart.token_noise.TokenDeletion",
    "bertfam.corruption.bart.token_noise.TokenMasking",
    "bertfam.corruption.entities.EntityMasking",
    "bertfam.corruption.skip_grams.SkipGrams",
    "bertfam.corruption.t5.random_spans.RandomSpans",
    "bertfam.corruption.t5.random_tokens.RandomPrefix",
    "bertfam.corruption.t5.random_tokens.RandomTokens",
    "bertfam.corruption.t5.span_formats.ClearToSentinels",
    "bertfam.corruption.t5.span_formats.DropClear",
    "bertfam.corruption.t5.span_formats.DropNoise",
    "bertfam.corruption.t5.span_formats.KeepAll",
    "bertfam.corruption.t5.span_formats.MaskNoise",
    "bertfam.corruption.t5.span_formats.NoiseToSentinels",
    "bertfam.corruption.t5.span_formats.ShuffleNoise",
    "bertfam.corruption.masked_lm.shuffled_windows.ShuffledWindows",
    "bertfam.corruption.t5.span_corruption.SpanCorruption",
    "bertfam.corruption.t5.text_to_text.TextToText",
    "bertfam.corruption.masked_lm.units.SalientSpan",
    "bertfam.corruption.masked_lm.units.Units",
    "bertfam.data.corpora.labelled.labelled_files.LabelledFiles",
    "bertfam.data.corpora.marked_text.MarkedText",
    "bertfam.data.rows.labelled.answer_windows.AnswerWindows",
    "bertfam.data.rows.blocks.Blocks",
    "bertfam.data.rows.completions.Completions",
    "bertfam.data.rows.labelled.choices.ChoiceLabels",
    "bertfam.data.rows.labelled.choices.ChoiceTexts",
    "bertfam.data.rows.labelled.labelled_texts.LabelledTexts",
    "bertfam.data.rows.labelled.labelled_texts.Labels",
    "bertfam.data.rows.mixture.Mixture",
    "bertfam.data.rows.mixture.Shares",
    "bertfam.data.rows.packing.Packed",
    "bertfam.data.corpora.pair_files.PairFiles",
    "bertfam.data.rows.sentence_pairs.SentencePairs",
    "bertfam.data.corpora.python_docs.corpus.PythonDocs",
    "bertfam.data.seqio_tasks.corpus.SeqioTask",
    "bertfam.data.seqio_tasks.labelled_tasks.LabelledTask",
    "bertfam.data.seqio_tasks.labelled_tasks.TargetTask",
    "bertfam.data.corpora.labelled.open_questions.AnswerFiles",
    "bertfam.data.corpora.labelled.passage_files.PassageFiles",
    "bertfam.data.rows.labelled.passage_texts.PassageLabels",
    "bertfam.data.rows.labelled.passage_texts.PassageTexts",
    "bertfam.data.rows.labelled.question_answers.QuestionAnswerRows",
    "bertfam.data.rows.labelled.question_answers.QuestionAnswers",
    "bertfam.data.corpora.labelled.question_files.QuestionFiles",
    "bertfam.data.corpora.labelled.tagged_files.TaggedFiles",
    "bertfam.data.corpora.labelled.target_files.TargetFiles",
    "bertfam.data.corpora.text_files.TextFiles",
    "bertfam.data.text_data.TextData",
    "bertfam.data.rows.recurrent_pairs.RecurrentPairs",
    "bertfam.data.rows.document_windows.DocumentWindows",
    "bertfam.data.rows.running_text.Chunks",
    "bertfam.data.rows.running_text.ClozeBlocks",
    "bertfam.data.rows.running_text.DocSentences",
    "bertfam.data.rows.running_text.FullSentences",
    "bertfam.data.rows.running_text.WholeDocuments",
    "bertfam.data.rows.labelled.tagged_words.TaggedWords",
    "bertfam.data.rows.labelled.tagged_words.Tags",
    "bertfam.data.rows.text_pairs.TextPairs",
    "bertfam.data.rows.labelled.text_windows.TextWindows",
    "bertfam.data.rows.two_segments.TwoSegments",
    "bertfam.analysis.probes.evaluation.WordProbes",
    "bertfam.compression.quantization.Quantization",
    "bertfam.layers.execution.Execution",
    *(f"{family.module}.{family.config}" for family in FAMILIES),
    "bertfam.models.encoder_decoder.EncoderOnlyConfig",
    "bertfam.objectives.albert.MlmSop",
    "bertfam.objectives.bert.MlmNsp",
    "bertfam.objectives.mlm.CausalAndMasked",
    "bertfam.objectives.causal_lm.CausalLm",
    "bertfam.objectives.distillation.Distillation",
    "bertfam.objectives.electra.Electra",
    "bertfam.objectives.fine_tuning.heads.Classification",
    "bertfam.objectives.fine_tuning.heads.MultiLabelClassification",
    "bertfam.objectives.fine_tuning.heads.MultipleChoice",
    "bertfam.objectives.fine_tuning.heads.Regression",
    "bertfam.objectives.fine_tuning.heads.SpanExtraction",
    "bertfam.objectives.fine_tuning.heads.Tagging",
    "bertfam.objectives.fine_tuning.gates.HeadGates",
    "bertfam.objectives.fine_tuning.lora.Lora",
    "bertfam.objectives.fine_tuning.objective.FineTuning",
    "bertfam.objectives.fine_tuning.probe.LinearProbe",
    "bertfam.objectives.mlm.Mlm",
    "bertfam.objectives.permutation_lm.PermutationLm",
    "bertfam.objectives.representations.bilm.Bilm",
    "bertfam.objectives.representations.skip_gram.SkipGram",
    "bertfam.objectives.retrieval.dual_encoder.DualEncoder",
    "bertfam.objectives.retrieval.rag.Rag",
    "bertfam.objectives.retrieval.realm.Realm",
    "bertfam.objectives.retrieval.retromae.RetroMae",
    "bertfam.objectives.sequence_to_sequence.SequenceToSequence",
    "bertfam.objectives.representations.entities.MlmNspDea",
    "bertfam.objectives.spanbert.MlmSbo",
    "bertfam.objectives.structbert.MlmStructure",
    "bertfam.objectives.teacher.Teacher",
    "bertfam.sharding.mesh.MeshShape",
    "bertfam.sharding.rules.Rules",
    *(f"bertfam.studies.study.{name}" for name in ("Arm", "Axis", "Claim", "Study")),
    "bertfam.studies.scores.bits_per_byte.BitsPerByte",
    "bertfam.studies.scores.fine_tuned.FineTuned",
    "bertfam.studies.scores.held_out.HeldOut",
    "bertfam.studies.scores.masked_loss.MaskedLoss",
    "bertfam.studies.scores.minimal_pairs.MinimalPairs",
    "bertfam.training.evaluations.feature_probe.FeatureProbe",
    "bertfam.training.logs.trackers.Wandb",
    "bertfam.training.optimizers.Adafactor",
    "bertfam.training.optimizers.AdamW",
    "bertfam.training.optimizers.BertAdam",
    "bertfam.training.optimizers.Lamb",
    "bertfam.training.optimizers.Lion",
    "bertfam.training.optimizers.Muon",
    "bertfam.training.optimizers.Sparsity",
    "bertfam.training.optimizers.StableAdamW",
    "bertfam.training.run.Run",
    "bertfam.training.schedules.ConstantRate",
    "bertfam.training.schedules.CosineDecay",
    "bertfam.training.schedules.InverseSquareRoot",
    "bertfam.training.schedules.LinearDecay",
    "bertfam.training.schedules.PolynomialDecay",
    "bertfam.training.schedules.WarmupStableDecay",
    "bertfam.training.stages.Ramp",
    "bertfam.training.stages.Stage",
)


class Parameter(typing.NamedTuple):
    """Parameter of a configurable.

    Attributes:
      hint: its annotation, or typing.Any without one.
      required: True if it has no default, or the default gin.REQUIRED.
    """

    hint: Any
    required: bool


def register(target: Any, module: str | None = None) -> Any:
    """Make a (frozen data)class or function configurable under its own name; return it unchanged."""
    gin.external_configurable(target, module=module)
    return target


def find(name: str) -> list[gin_config.Configurable]:
    """Return the configurables that match `name`, a complete selector or its last dotted parts: none, one or several."""
    for path in (*_paths(name), *(family for family in _outside_families() if _is_named(family, name))):
        # Registering a class again would make another wrapper of it, which takes longer than all other work of a lookup.
        if path not in gin_config._REGISTRY:
            module, _, attribute = path.rpartition(".")
            register(getattr(importlib.import_module(module), attribute), module)
    return gin_config._REGISTRY.get_all_matches(name)  # gin has no public function for this


# A configuration looks up each of its names several times.
@functools.lru_cache(maxsize=512)
def _paths(name: str) -> list[str]:
    return [path for path in CONFIGURABLES if _is_named(path, name)]


def _is_named(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def renamed(name: str) -> str | None:
    """Return the current selector of a configurable that is named by an old module path, whole or its last parts.

    None if `bertfam.moved` has no such path.
    """
    module, _, attribute = name.rpartition(".")
    modules = {new for old, new in moved.MODULES.items() if f".{old}".endswith(f".{module}")}
    selectors = {f"{new}.{attribute}" for new in modules} & set(CONFIGURABLES)
    return selectors.pop() if len(selectors) == 1 else None


def get(selector: str) -> gin_config.Configurable:
    """Return the configurable of a complete selector."""
    return gin_config._REGISTRY[selector]


def short_name(selector: str) -> str:
    """Return the shortest unambiguous name of a configurable."""
    return gin_config._REGISTRY.minimal_selector(selector)


def names() -> set[str]:
    """Return the last part of the name of every configurable, for suggestions."""
    known = [selector for selector, _ in gin_config._REGISTRY.items() if not selector.startswith("gin.")]
    return {selector.rpartition(".")[2] for selector in (*CONFIGURABLES, *_outside_families(), *known)}


def _outside_families() -> list[str]:
    """Return the selectors of the configs of families from outside the package."""
    return [f"{family.module}.{family.config}" for family in registered()]


@functools.cache
def parameters(selector: str) -> dict[str, Parameter] | None:
    """Return name -> Parameter in the order of the signature; None if any name is accepted (**kwargs)."""
    target = get(selector).wrapped
    signature = inspect.signature(target).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature):
        return None
    hints = type_hints(target)
    return {
        parameter.name: Parameter(
            hints.get(parameter.name, Any), parameter.default is parameter.empty or parameter.default is gin.REQUIRED
        )
        for parameter in signature
    }


def defaults(selector: str) -> dict[str, Any]:
    """Return the parameters whose default is a plain value: None, a number, a string, or a tuple of such."""
    signature = inspect.signature(get(selector).wrapped).parameters
    return {name: parameter.default for name, parameter in signature.items() if is_plain(parameter.default)}


def is_plain(value: Any) -> bool:
    """Return True for None, a number, a string, or a tuple of such."""
    return value is None or type(value) in (bool, int, float, str) or type(value) is tuple and all(map(is_plain, value))


def type_hints(target: Any) -> dict[str, Any]:
    """Return the annotations of a dataclass, of another class's __init__, or of a function.

    Empty if they name something that only a type checker imports; the values of such a configurable are not checked.
    """
    annotated = target.__init__ if inspect.isclass(target) and not dataclasses.is_dataclass(target) else target
    try:
        return typing.get_type_hints(annotated)
    except NameError:
        return {}


def descriptions(target: Any) -> dict[str, str]:
    """Return the meaning of each field from the "Attributes:" or "Args:" of a class, its bases, or a function."""
    found: dict[str, str] = {}
    for owner in reversed(inspect.getmro(target)) if inspect.isclass(target) else [target]:
        text = inspect.cleandoc(owner.__doc__ or "")
        section = re.search(r"^(?:Attributes|Args):\n((?:[ ]+.*\n?|\n)+)", text, re.MULTILINE)
        for entry in re.split(r"^  (?=\S)", section[1], flags=re.MULTILINE)[1:] if section else []:
            names, colon, meaning = entry.partition(":")
            if colon:
                found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    return found
