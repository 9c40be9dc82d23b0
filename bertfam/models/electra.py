"""ELECTRA (Clark, Luong, Le, Manning 2020): BERT's encoder as a discriminator, and the smaller one that fools it."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from bertfam.errors import UserError
from bertfam.layers.activations import Activation
from bertfam.layers.execution import Execution
from bertfam.layers.heads.pretraining import TokenHead
from bertfam.models.bert import BertConfig

_EXECUTION = Execution()
_HEAD_DIM = 64


@dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """Sizes and rates of one of ELECTRA's networks; the defaults are the discriminator of ELECTRA-base. See `BertConfig`.

    The masked-token head, which generators have, is computed with the error function's gelu, whatever `activation` is.
    """

    objective_file: ClassVar[str] = "objectives/electra.gin"

    head_activation: Activation | None = "gelu"

    def generator(self, width: float, depth: float) -> "ElectraConfig":
        """The generator of this discriminator, whose tables it shares (Clark et al. 2020, section 3.2, as published in code).

        It has round(width * hidden_size) units, round(depth * num_layers) layers, four times its width in the feed-forward layers
        and as many heads of at least 64 units as divide its width, one at least.

        Args:
          width, depth: the fractions.

        Raises:
          UserError: when such sizes do not go together.
        """
        hidden_size = round(width * self.hidden_size)
        most_heads = max(1, hidden_size // _HEAD_DIM)
        sizes: dict[str, Any] = {
            "hidden_size": hidden_size,
            "num_layers": round(depth * self.num_layers),
            "num_heads": next(heads for heads in range(most_heads, 0, -1) if hidden_size % heads == 0),
            "feed_forward_size": 4 * hidden_size,
            "embedding_size": self.table_width,
        }
        try:
            return dataclasses.replace(self, **sizes)
        except UserError as error:
            told = f"generator_width {width} and generator_depth {depth} give no generator of this model: {error}"
            raise UserError(told) from error


def replaced_token_head(config: BertConfig, execution: Execution = _EXECUTION) -> TokenHead:
    """Hidden states [..., embed] -> float32[...] logits, of each token being another than the text's."""
    return TokenHead(config.activation, config.initializer_range, execution)
