"""Opening of a run, step by step: configuration, vocabulary, checkpoint, model on its mesh, data.

The commands that train, check, replay and evaluate a run call these steps, so that they agree on what a run is. No step starts
a collective: a command of several processes wraps each of them in `Processes.on_all`.
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import jax
from typing_extensions import override

from bertfam.config import Config, Defaults, Override, file_binds
from bertfam.config.objects import bind_field, find_binding
from bertfam.data import vocabularies
from bertfam.data.checks.vocabulary_check import check_padding_id, check_vocabulary_fits
from bertfam.data.rows.batches import Batches
from bertfam.data.text_data import HeldOut, TextData
from bertfam.data.token_cache.build_process import check_buildable
from bertfam.data.token_cache.builder import fingerprint
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.finetuning.class_counts import check_labels
from bertfam.layers.execution import AUTO
from bertfam.planning.choices import EXECUTION, REFERENCES, Choice, choose, value_of, with_choices
from bertfam.sharding.chips import memory_bytes
from bertfam.storage.files import is_used
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import has_training_state, selection
from bertfam.training.checkpoints.shapes import check_shapes
from bertfam.training.integrity import model_dir_files
from bertfam.training.jax_setup import check_jaxlib
from bertfam.training.logs.phase_timer import PhaseTimer
from bertfam.training.model_dir import check_config, check_folder, check_resumes, read_run
from bertfam.training.run import Run
from bertfam.training.run_checks import check_text
from bertfam.training.stages import stage_batches
from bertfam.training.teachers import LoadedTeacher, read_aux
from bertfam.training.trainer import Trainer
from bertfam.training.warm_start.branch import Branch
from bertfam.training.warm_start.source import Source, Used

# -- Configuration


@dataclass(frozen=True)
class Configuration:
    """Configuration of a run.

    Attributes:
      model_dir: the folder of the run; None if the command names none.
      config: the merged gin configuration.
      run: the run that it describes; the vocabulary's size is not known yet.
      named: the run's text with only the corpus and the vocabulary that the command's own flags name.
    """

    model_dir: Path | None
    config: Config
    run: Run
    named: TextData

    @property
    def cache_directory(self) -> Path | None:
        """Directory of the token cache, built or not; None if the command names no place for it."""
        data = self.run.data
        if self.model_dir:
            return data.cache_directory(self.model_dir)
        return to_path(data.cache_dir) if data.cache_dir else None


@dataclass(frozen=True)
class TrainingConfiguration(Configuration):
    """Configuration of a run that is trained: it has a folder, and so a place for its token cache.

    Attributes:
      used: what comes from the folder of --init_from; None without that flag.
      implies_vocabulary: True if files and flags name no vocabulary, and it is that of a model folder.
      branch: the checkpoint of another run that it goes on from; None if it does not, or resumes.
    """

    model_dir: Path
    used: Used | None = None
    implies_vocabulary: bool = False
    branch: Branch | None = None

    @property
    @override
    def cache_directory(self) -> Path:
        return self.run.data.cache_directory(self.model_dir)


@dataclass(frozen=True)
class OpenTeacher:
    """Teacher that a command's flags name.

    Attributes:
      bindings: what its flags bind in the configuration.
      loaded: the teacher; empty if the flags name none, and the configuration does.
      warnings: warnings about what the flags name.
    """

    bindings: Sequence[Override] = ()
    loaded: Sequence[LoadedTeacher] = ()
    warnings: Sequence[str] = ()


class Teacher(Protocol):
    """Flags of a command that name a teacher."""

    def open(self, gin_files: Sequence[str], defaults: Defaults) -> OpenTeacher:
        """Read the teacher, once the gin files of the student, and what they may leave out, are known.

        Raises:
          UserError: the flags do not go together, or name no teacher of this student.
        """
        ...


def find_gin_files(given: Sequence[str], model_dir: Path | None, *, required: bool = True) -> list[str]:
    """Return the gin files of a run: the given ones, the configuration that MODEL_DIR has, or both.

    Given files that have an objective replace the configuration of MODEL_DIR; others are laid over it.

    Args:
      given: the files that the command names.
      model_dir: the folder of the run; None if the command names none.
      required: whether the run has no other configuration.

    Raises:
      UserError: there is neither, MODEL_DIR is no place for a run, or a file of its run is missing or changed.
    """
    if model_dir:
        model_dir_files.check(model_dir)
        check_folder(model_dir)
    saved = model_dir / "config.gin" if model_dir else None
    if saved is None or not saved.is_file():
        if required and not given:
            where = f"{model_dir} has none, so give" if model_dir else "give"
            raise UserError(f"no configuration: {where} --gin_file=FILE (runs/quickstart.gin, say)")
        return list(given)
    if given and file_binds(given, "Run.objective"):
        return list(given)
    check_config(saved)
    return [str(saved), *given]


# -- Vocabulary


def with_cache_of(config: Config, branch: Branch) -> Config:
    """Return the configuration of a branch with the token cache of the other run, unless it names text or a cache."""
    cache = branch.folder / "cache"
    bound = config.bindings_of("TextData.corpus"), config.bindings_of("TextData.cache_dir")
    if any(binding.origin.source not in config.saved_sources for bindings in bound for binding in bindings):
        return config
    if config.value("TextData.cache_dir") is not None or not is_used(cache):
        return config
    return config.with_binding(Override(f"TextData.cache_dir = {str(cache.absolute())!r}", f"--branch_from={branch.text}"))


def with_implied_vocabulary(config: Config, model_dir: Path | None, source: Source | None = None) -> Config:
    """Return the configuration with the vocabulary of a model folder, if neither files nor flags name one.

    That is the folder that the run starts from, or else MODEL_DIR.

    Args:
      config: the configuration of the run.
      model_dir: the folder of the run; None if the command names none.
      source: the folder that the run starts from.
    """
    cache = config.value("TextData.cache_dir")
    if config.value("TextData.vocabulary") is not None or (cache and is_used(cache)):
        return config
    folder, origin = (model_dir / "vocab", f"--model_dir={model_dir}") if model_dir else (None, "")
    if source:
        folder, origin = source.vocabulary_folder, source.origin
    if folder is None or not is_used(folder):
        return config
    return config.with_binding(Override(f"TextData.vocabulary = {str(folder)!r}", origin))


@dataclass(frozen=True)
class OpenVocabulary:
    """Vocabulary of a run, and the token cache that it belongs to.

    Attributes:
      vocabulary: that of the token cache, or of the one that will be built.
      folder: where the vocabulary was read.
      cache: the token cache; None if it is not built yet.
      run: the run, with the vocabulary's size.
    """

    vocabulary: Vocabulary
    folder: Path
    cache: TokenCache | None
    run: Run


def open_vocabulary(configuration: Configuration) -> OpenVocabulary:
    """Read the vocabulary, and check that it has what the rows, the noise and the networks of the run need.

    Raises:
      UserError: it lacks something, or there is neither a token cache nor anything to build it from.
    """
    run, directory = configuration.run, configuration.cache_directory
    cache = TokenCache(directory) if directory and is_used(directory) else None
    if not cache:
        check_buildable(run.data)
    folder = cache.vocabulary_directory if cache else to_path(str(run.data.vocabulary))
    vocabulary = vocabularies.load(folder)
    for index, stage in enumerate(run.stages):
        check_vocabulary_fits(run.data_of(index), vocabulary.token_ids, folder, stage.length)
        check_padding_id(run.objective_of(index).networks.values(), vocabulary, folder)
    return OpenVocabulary(vocabulary, folder, cache, run.fitted(vocabulary))


# -- Checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """Newest checkpoint of a run, as it stands when a command starts.

    Attributes:
      step: its step; None if there is none, and the run is new.
      resumes: True if it has the state of training. An imported model has parameters only, and its run is new too.
      branched: step of another run's checkpoint that a new run goes on from; 0: there is none.
    """

    step: int | None
    resumes: bool
    branched: int = 0

    @property
    def first_step(self) -> int:
        """Number of updates that are made already."""
        return self.step if self.step is not None and self.resumes else self.branched


def describe_checkpoint(model_dir: Path | None, step: int | None) -> Checkpoint:
    """Describe the checkpoint of a step; None stands for no checkpoint."""
    return Checkpoint(step, model_dir is not None and step is not None and has_training_state(model_dir, step))


def check_checkpoint(configuration: Configuration, vocabulary: OpenVocabulary, checkpoint: Checkpoint) -> None:
    """Raise UserError if the run cannot resume from the checkpoint, or start from the imported model that it holds."""
    if configuration.model_dir is None or checkpoint.step is None:
        return
    given = (configuration.named.vocabulary or vocabulary.folder, vocabulary.folder)
    check_resumes(configuration.model_dir, vocabulary.run, given, checkpoint.step)
    folder = selection.folder(configuration.model_dir) / str(checkpoint.step)
    check_shapes(configuration.model_dir, folder, "params", vocabulary.run.boxed_params)


def check_given_text(configuration: Configuration, vocabulary: OpenVocabulary) -> None:
    """Raise UserError if text without a token cache, which is still to be tokenised, is not that of the run in MODEL_DIR."""
    if configuration.model_dir is None:
        return
    data, own = vocabulary.run.data, configuration.cache_directory
    try:
        check_text(fingerprint(data.corpora, vocabulary.vocabulary), "what is given", configuration.model_dir)
    except UserError as error:
        # A run that was started from a cache keeps the text of its gin files, which may be another.
        if configuration.named.corpus is not None or not data.cache_dir:
            raise
        raise _missing_cache(own, configuration.model_dir, ", or name its copy by --cache_dir") from error


# -- How it is computed

_Configuration = TypeVar("_Configuration", bound=Configuration)


@dataclass(frozen=True)
class Resolved(Generic[_Configuration]):
    """Run without any "auto" that its configuration can express.

    Attributes:
      configuration: the configuration, with a value in place of each "auto".
      vocabulary: the vocabulary, with the run of that configuration.
      reasons: the reason of each value that was chosen, by its name in gin files.
    """

    configuration: _Configuration
    vocabulary: OpenVocabulary
    reasons: dict[str, str]


def device_memory() -> int | None:
    """Return the bytes that a device of this process has; None if they are unknown, as for a CPU."""
    return memory_bytes(jax.local_devices()[0])


def resolve(
    configuration: _Configuration, vocabulary: OpenVocabulary, checkpoint: Checkpoint, memory: int | None
) -> Resolved[_Configuration]:
    """Choose each "auto" of a run for its devices.

    A run that resumes keeps the values that MODEL_DIR has recorded, unless a gin file or a flag binds them. Its config.gin names
    all of them; that of a version before "auto" may name none, and means `REFERENCES`.

    Args:
      configuration: the configuration.
      vocabulary: the vocabulary, with the sized run.
      checkpoint: the checkpoint that the run starts from.
      memory: bytes that a device has, equal on all processes, so that they choose alike.

    Raises:
      UserError: if sizes do not divide over the mesh.
    """
    config, run = configuration.config, vocabulary.run
    choices = {name: choice for name, choice in _recorded(configuration, checkpoint).items() if value_of(run, name) == AUTO}
    choices |= choose(with_choices(run, choices), jax.devices(), memory)
    for name, choice in choices.items():
        config = bind_field(config, *_place(name), choice.value, f"auto: {choice.reason}")
    run = config.build("Run")
    configuration = dataclasses.replace(configuration, config=config, run=run)
    reasons = {name: choice.reason for name, choice in choices.items()}
    return Resolved(configuration, dataclasses.replace(vocabulary, run=run.fitted(vocabulary.vocabulary)), reasons)


def _recorded(configuration: Configuration, checkpoint: Checkpoint) -> dict[str, Choice]:
    """Return the values that MODEL_DIR has recorded, of the fields that no gin file or flag of the command binds."""
    config, model_dir = configuration.config, configuration.model_dir
    if model_dir is None or checkpoint.step is None:
        return {}
    saved, recorded = read_run(model_dir), dict[str, Choice]()
    for name, reference in REFERENCES.items():
        binding = find_binding(config, *_place(name))
        if binding is not None and binding.origin.source not in config.saved_sources:
            continue
        value = value_of(saved, name)
        if value != AUTO or checkpoint.resumes:
            recorded[name] = Choice(reference if value == AUTO else value, "as before")
    return recorded


def _place(name: str) -> tuple[Sequence[str], str]:
    """Return the path from the run to the object that has a field of `REFERENCES`, and the field."""
    is_execution = name.startswith(EXECUTION)
    return ("Run", "objective", "execution") if is_execution else ("Run",), name.rpartition(".")[2]


# -- Model on its mesh


@dataclass(frozen=True)
class Model:
    """Model of a run on the devices that are here.

    Attributes:
      trainer: its programs and shardings; nothing is compiled yet.
      aux: what the objective reads and does not train, such as a teacher's parameters: NumPy arrays.
    """

    trainer: Trainer
    aux: dict[str, Any] = field(repr=False)


def open_model(
    run: Run, vocabulary: Vocabulary, teachers: Collection[LoadedTeacher] = (), phase_timer: PhaseTimer | None = None
) -> Model:
    """Lay the model out on the run's mesh, which checks all sizes, and read what its objective does not train.

    Args:
      run: the sized run.
      vocabulary: the run's.
      teachers: those that are read already.
      phase_timer: where the trainer's phases are counted.

    Raises:
      UserError: the run is to store integers, sizes do not divide over the mesh, jaxlib is too slow here, or a teacher or
        entities are not the run's.
    """
    if run.quantization is not None:
        raise UserError(
            "Run.quantization says how `bertfam quantize` stored a model, and a run trains floats: leave it out, and quantise "
            "the trained model; `bertfam finetune --quantize` trains for it"
        )
    check_jaxlib(jax.default_backend(), jax.lib.__version__)
    return Model(Trainer(run, run.mesh.build(), phase_timer), read_aux(run, vocabulary, teachers))


# -- Data


@dataclass(frozen=True)
class RunData:
    """Batches of a run.

    Attributes:
      training: the batches to train on, by stage.
      held_out: the batches to evaluate on, by stage; None where the text has too few held-out documents.
    """

    training: list[Batches]
    held_out: list[HeldOut | None]


def training_batches(run: Run, cache: TokenCache, vocabulary: Vocabulary) -> list[Batches]:
    """Return the batches that each stage of the run trains on."""
    opened: dict[int, Batches] = {}
    for index in range(len(run.stages)):
        opened[index] = stage_batches(run.data, run.stages, index, cache, vocabulary.token_ids, run.seed, opened)
    return list(opened.values())


def open_data(run: Run, cache: TokenCache, vocabulary: Vocabulary) -> RunData:
    """Open the batches of all stages; raises UserError if the token cache does not have what they need."""
    check_labels(run, cache)
    training = training_batches(run, cache, vocabulary)
    held_out: list[HeldOut | None] = []
    for index, stage in enumerate(run.stages):
        sizes = (cache, vocabulary.token_ids, stage.length, stage.batch_size)
        held_out.append(run.data_of(index).held_out(*sizes, at_most=run.most_eval_batches))
    return RunData(training, held_out)


# -- A run that has been trained


@dataclass(frozen=True)
class SavedRun:
    """Run of a MODEL_DIR.

    Attributes:
      run: its configuration, with the vocabulary's size.
      vocabulary: its vocabulary.
    """

    run: Run
    vocabulary: Vocabulary


def open_saved_run(model_dir: Path) -> SavedRun:
    """Read the configuration and the vocabulary of a MODEL_DIR; raises UserError if one is missing."""
    run = read_run(model_dir)
    vocabulary = vocabularies.load(model_dir / "vocab")
    return SavedRun(run.fitted(vocabulary), vocabulary)


def open_saved_cache(run: Run, model_dir: Path, directory: str | None = None, *, otherwise: str = "") -> TokenCache:
    """Open the token cache of a MODEL_DIR, or another one in its place.

    Args:
      run: the run.
      model_dir: its folder.
      directory: the other cache; None: that of the run.
      otherwise: what the command offers if the run's is not on this machine, beside copying it there.

    Raises:
      UserError: there is no such cache.
    """
    if directory is None and not is_used(own := run.data.cache_directory(model_dir)):
        raise _missing_cache(own, model_dir, otherwise)
    cache = TokenCache(directory or run.data.cache_directory(model_dir))
    check_labels(run, cache)
    return cache


def _missing_cache(own: Path | None, model_dir: Path, otherwise: str) -> UserError:
    return UserError(f"{own}, the token cache of {model_dir}, does not exist on this machine: copy it there{otherwise}")
