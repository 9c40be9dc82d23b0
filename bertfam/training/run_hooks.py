"""The hooks of a run: saving, evaluating, sampling."""

from collections.abc import Collection, Sequence

from bertfam.data.text_data import HeldOut
from bertfam.data.vocabularies import Vocabulary
from bertfam.multihost.preemption import Stop
from bertfam.training.checkpoints import Checkpoints
from bertfam.training.hooks import EvaluateHook, Hook, SampleHook, SaveHook
from bertfam.training.logs.metrics import Writer
from bertfam.training.logs.samples import sample_texts
from bertfam.training.stages import locate
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer

_SAMPLES = 4


def make_hooks(
    trainer: Trainer,
    checkpoints: Checkpoints,
    evaluations: Sequence[HeldOut | None],
    vocabulary: Vocabulary,
    writer: Writer,
    stop: Stop,
    evaluated: Collection[int],
) -> list[Hook]:
    """What is done between the steps of a run. It saves first: what takes long afterwards can cost no step.

    Args:
      trainer: of the run.
      checkpoints: where it saves.
      evaluations: the held-out rows of each stage; None where there are too few.
      vocabulary: of the samples.
      writer: of scores and samples.
      stop: cuts an evaluation short.
      evaluated: the steps whose scores were written before.
    """
    run = trainer.run

    def held_out(updates: int) -> tuple[HeldOut, int]:
        stage, _ = locate(run.stages, updates - 1)
        rows = evaluations[stage]
        assert rows is not None
        return rows, stage

    def scores(updates: int, state: TrainState) -> dict[str, dict[str, float]] | None:
        found = {}
        for split, params in {"eval_average": state.average, "eval": state.params}.items():
            if params:
                measured = trainer.scores(params, *held_out(updates), stop, aux=state.aux)
                if measured is None:
                    return None
                found[split] = measured
        return found

    def samples(updates: int, state: TrainState) -> list[str]:
        return sample_texts(trainer.predictions(state.params, *held_out(updates)), vocabulary, _SAMPLES)

    hooks: list[Hook] = [SaveHook(run.checkpoint_every, run.total_steps, checkpoints, writer)]
    if all(evaluations):
        if run.eval_every:
            hooks.append(EvaluateHook(run.eval_every, run.total_steps, scores, writer, set(evaluated)))
        if run.sample_every:
            hooks.append(SampleHook(run.sample_every, run.total_steps, samples, writer))
    return hooks
