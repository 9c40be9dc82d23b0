"""A model that an objective reads and does not train."""

from dataclasses import dataclass

from bertfam.models.encoder import EncoderConfig


@dataclass(frozen=True)
class Teacher:
    """A model in a folder, whose parameters are `aux`: an argument of the step, without gradient, in no checkpoint.

    `bertfam distill --teacher=DIR` writes it into a run's configuration, so that a run that goes on finds the same one.

    Attributes:
      folder: a MODEL_DIR, or a Hugging Face folder.
      model: its config.
      has_head: whether it predicts masked tokens; otherwise it has hidden states alone.
      digest: of its parameters.
      step: of the checkpoint, where it is a MODEL_DIR.
      network: which, where the folder holds several, such as "generator" of ELECTRA; None: the first.
    """

    folder: str
    model: EncoderConfig
    has_head: bool
    digest: str
    step: int | None = None
    network: str | None = None
