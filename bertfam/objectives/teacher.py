"""Teacher: a trained model that an objective reads and does not train."""

from dataclasses import dataclass

from bertfam.models.encoder import EncoderConfig


@dataclass(frozen=True)
class Teacher:
    """Trained model in a folder; its parameters are `aux`, an argument of the step that has no gradient and is never saved.

    `bertfam distill --teacher=DIR` writes it into the run's configuration, so that a resumed run uses the same teacher.

    Attributes:
      folder: a MODEL_DIR, or a Hugging Face folder.
      model: config of its encoder.
      has_head: True if it has a masked-language-model head; otherwise it gives hidden states alone.
      digest: digest of its parameters.
      step: step of the checkpoint, where `folder` is a MODEL_DIR.
      network: name of the network where the folder holds several, such as "generator" of ELECTRA; None: the first.
    """

    folder: str
    model: EncoderConfig
    has_head: bool
    digest: str
    step: int | None = None
    network: str | None = None
