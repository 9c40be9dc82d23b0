"""Arms of a study, opened: the configuration of each, its cost, and the number of updates that the common budget gives it."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from bertfam.config import Config, Override, lint, registry
from bertfam.config.objects import bind_field
from bertfam.config.parse import Reference, parts
from bertfam.data import vocabularies
from bertfam.data.text_data import TextData
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.session import Configuration, open_vocabulary
from bertfam.studies.study import Arm, Study
from bertfam.training.run import Run
from bertfam.training.teachers import open_teacher, teacher_bindings

# Loads the configuration of gin files and bindings over the text that the command's flags name.
Load = Callable[[Sequence[str], Sequence[Override]], Config]
_SCHEDULE = ("Run", "optimizer", "schedule")
_PARTS = 4  # of a run, after each of which it is evaluated and saved
_UPDATES = ("TRAIN_STEPS", "Stage.steps")  # bindings that the budget decides


@dataclass(frozen=True)
class OpenArm:
    """Arm with its configuration.

    Attributes:
      arm: the arm.
      config: its configuration, as the study and the arm set it.
      run: the run that it describes, with the vocabulary's size.
      vocabulary: its vocabulary.
    """

    arm: Arm
    config: Config
    run: Run
    vocabulary: Vocabulary

    @functools.cached_property
    def parameters(self) -> int:
        """Number of parameters; the first access takes tenths of a second."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.run.boxed_params))

    @property
    def tokens(self) -> int:
        """Tokens of all rows of the updates that the configuration states."""
        return sum(stage.steps * stage.batch_size * stage.length for stage in self.run.stages)

    @property
    def flops(self) -> int:
        """Matrix-product FLOPs of these updates; packed rows count as one example each."""
        return self.run.flops_after(0)

    def cost(self, study: Study, seconds_per_update: float | None) -> float:
        """Return the cost of these updates in the unit of the budget."""
        if study.equal == "seconds":
            assert seconds_per_update is not None
            return self.run.total_steps * seconds_per_update
        return self.flops if study.equal == "flops" else self.tokens

    def scaled(self, factor: float) -> ScaledArm:
        """Return the arm with so many times as many updates in each stage, rounded, at least one."""
        config = self.config
        for stage in self._stages():
            scopes, selector = stage.scopes, registry.find(stage.name)[0].selector
            steps = lint.resolve(lint.bound(config.bindings, selector, scopes)["steps"].value, config.bindings)
            line = f"{'/'.join((*scopes, stage.name))}.steps = {max(1, round(steps * factor))}"
            config = config.with_binding(Override(line, "Study.budget"))
        return ScaledArm(self.arm, config, config.build("Run").fitted(self.vocabulary), self.vocabulary)

    def _stages(self) -> Sequence[Reference]:
        found = [part for part in parts(self.config.value("Run.stages")) if isinstance(part, Reference)]
        if len({(stage.scopes, stage.name) for stage in found}) < len(found):
            raise UserError(f"arm {self.arm.name!r}: Run.stages has a stage twice; write (@first/Stage(), @then/Stage())")
        return found


class ScaledArm(OpenArm):
    """Arm whose updates are those of a budget."""

    @property
    def updates(self) -> int:
        """Number of updates."""
        return self.run.total_steps

    def configured(self, study: Study, seed: int, rate: float | None) -> Config:
        """Return the complete configuration of a run of the arm.

        Args:
          study: the study.
          seed: seed of the run.
          rate: peak of the schedule; None: as the arm sets it.
        """
        config, every = self.config, -(-self.updates // _PARTS)
        values = {"seed": seed, "eval_every": every, "checkpoint_every": every, "keep_checkpoints": 1}
        for name, value in values.items():
            config = config.with_binding(Override(f"Run.{name} = {value}", "the study"))
        if study.warmup is not None and hasattr(self.run.optimizer.schedule, "warmup_steps"):
            config = bind_field(config, _SCHEDULE, "warmup_steps", round(study.warmup * self.updates), "Study.warmup")
        if rate is not None:
            config = bind_field(config, _SCHEDULE, "peak", rate, "Study.learning_rates")
        config = config.restricted("Run")
        config.build("Run")
        return config


def open_arms(study: Study, config: Config, load: Load, caches: Path) -> list[OpenArm]:
    """Open the arms of a study, and check that they can be compared.

    Args:
      study: the study.
      config: the configuration that describes it, for the places of its bindings.
      load: loads the configuration of an arm.
      caches: folder for the token caches of arms that name none.

    Raises:
      UserError: an arm has a mistake, sets its own number of updates, is the same as another one, or cannot have a score.
    """
    arms = [_open(study, arm, config, load, caches) for arm in study.arms]
    for one, other in itertools.combinations(arms, 2):
        if (one.arm.teacher, one.run) == (other.arm.teacher, other.run):
            raise UserError(
                f"{_place(config, other.arm)}: arms {one.arm.name!r} and {other.arm.name!r} are the same run: a binding has no "
                "effect; bertfam explain CLASS shows where a class is used"
            )
    _check_comparable(study, arms)
    return arms


def _open(study: Study, arm: Arm, config: Config, load: Load, caches: Path) -> OpenArm:
    """Open an arm."""
    lines = [*((line, _place(config, None)) for line in study.bindings), *((line, _place(config, arm)) for line in arm.bindings)]
    for line, place in lines:
        if (name := line.partition("=")[0].strip()) in _UPDATES:
            raise UserError(f"{place}: {name} is the number of updates, which Study.budget decides; leave it out")
    bindings = [Override(line, f'{place}: "{line}"') for line, place in lines]
    if arm.teacher:  # its FLOPs are a part of the student's
        bindings += teacher_bindings(open_teacher(arm.teacher), f"Arm.teacher={arm.teacher}")
    own = load((*study.files, *arm.files), bindings)
    data = own.build("TextData")
    if data.cache_dir is None:
        digest = hashlib.sha256(repr((data.corpus, data.vocabulary)).encode()).hexdigest()[:12]
        own = own.with_binding(Override(f"TextData.cache_dir = {str(caches / digest)!r}", "the study"))
    try:
        run = own.build("Run")
        opened = open_vocabulary(Configuration(None, own, run, run.data))
        _check_vocabulary(run.data, opened.vocabulary)
        for score in study.scores:
            score.check(arm.name, opened.run)
    except UserError as error:
        raise UserError(f"arm {arm.name!r}: {error}") from error
    return OpenArm(arm, own, opened.run, opened.vocabulary)


def _check_vocabulary(data: TextData, vocabulary: Vocabulary) -> None:
    """Raise UserError if the run names another vocabulary than that of its token cache."""
    if data.vocabulary and vocabularies.load(data.vocabulary).fingerprint != vocabulary.fingerprint:
        raise UserError(
            f"the token cache {data.cache_dir} has another vocabulary than {data.vocabulary}: bind TextData.cache_dir = None in "
            "the arm for a cache of its own"
        )


def _place(config: Config, arm: Arm | None) -> str:
    """Return the file and line of an arm's bindings, or of the study's for None; the file alone if that is not known."""
    bindings = config.bindings.values()
    owner, scope = ("Study", "")
    if arm is not None:
        named = (b for b in bindings if lint.label(b).endswith("Arm.name") and lint.resolve(b.value, config.bindings) == arm.name)
        owner, scope = "Arm", next((binding.scope for binding in named), "")
    own = [b for b in bindings if b.scope == scope and b.selector.endswith(f".{owner}")]
    found = next((b for b in own if b.parameter == "bindings"), None) or next(iter(own), None)
    return str(found.origin) if found else " ".join(config.files)


def _check_comparable(study: Study, arms: Sequence[OpenArm]) -> None:
    """Raise UserError for arms with different vocabularies and no score for them, or unequal parameters that are to be equal."""
    if len({arm.vocabulary.fingerprint for arm in arms}) > 1:
        scores = [type(score).__name__ for score in study.scores if not score.compares_vocabularies]
        if scores and not any(score.name == "bits_per_byte" for score in study.scores):
            raise UserError(
                f"Study.scores: the arms have different vocabularies, between which {' and '.join(scores)} cannot compare: add "
                "@BitsPerByte()"
            )
    if study.equal == "parameters":
        counts = {arm.arm.name: arm.parameters for arm in arms}
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        if counts[most] > counts[least] * (1 + study.tolerance):
            raise UserError(
                f"Study.equal is 'parameters', but arm {most!r} has {counts[most]:,} and arm {least!r} {counts[least]:,}: change "
                f"their sizes, or Study.tolerance ({study.tolerance:g})"
            )


def within_budget(study: Study, arm: OpenArm, amount: float, seconds_per_update: float | None = None) -> ScaledArm:
    """Return the arm with the updates that an amount of the budget gives it.

    Args:
      study: the study.
      arm: the arm.
      amount: the amount, in the unit of the budget.
      seconds_per_update: measured time of an update, for a budget of seconds.

    Raises:
      UserError: whole updates do not make up the amount.
    """
    scaled = arm.scaled(amount / arm.cost(study, seconds_per_update))
    spent = scaled.cost(study, seconds_per_update)
    if abs(spent / amount - 1) > study.tolerance:
        unit = "FLOPs" if study.equal == "flops" else "seconds" if study.equal == "seconds" else "tokens"
        raise UserError(
            f"arm {arm.arm.name!r}: a run of {plural(scaled.updates, 'update')} has {spent:,.4g} {unit}, and the budget is "
            f"{amount:,.4g}: that is more than {study.tolerance:.0%} from it (Study.tolerance); raise it, or make batches smaller"
        )
    return scaled
