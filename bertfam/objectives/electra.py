"""ELECTRA's objective: detection of the tokens that a generator has replaced (Clark, Luong, Le, Manning 2020)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.features import FeatureSpec, RowShape
from bertfam.layers.execution import Execution
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import put_positions
from bertfam.layers.sampling import keys_of_rows, sample
from bertfam.models.electra import ElectraConfig, replaced_token_head
from bertfam.models.encoder import init_encoder, init_on_hidden
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import (
    Batch,
    LossOut,
    Objective,
    Predictions,
    Sum,
    Tree,
    binary_cross_entropy,
    check_coefficients,
    masked_cross_entropy,
)

DISCRIMINATOR, GENERATOR = "discriminator", "generator"
# Part of the embeddings that networks do not share: the projection from the tables' width to the network's.
_OWN = "projection"


@dataclass(frozen=True)
class Electra(Objective):
    """L = mlm * mean over masked positions of CE(vocabulary) + rtd * mean over real tokens of BCE(replaced) (section 2, eq. 1).

    The generator predicts masked tokens. A token drawn from its softmax stands at every masked position in the discriminator's
    input, also where the generator saw the token itself, and is "replaced" where it differs from the text's. No gradient goes
    through the draw. The draw is a function of the row (see `keys_of_rows`) and the parameters.

    `init` makes params {"embeddings", "discriminator", "rtd_head", "generator", "mlm_head"}. "embeddings" is what both
    networks share: the tables of tokens, positions and types, and their LayerNorm. Each network holds its layers and, where the
    tables have another width, embeddings/projection. `split` puts the embeddings into both networks; `joined` keeps the
    discriminator's where it is among the networks.

    Metrics of `loss` are those of the generator's masked language model and, for the discriminator, `rtd_loss`, `rtd_accuracy`,
    `rtd_precision` and `rtd_recall` of replaced tokens, and `rtd_majority_accuracy`, the accuracy of calling no token replaced.

    Attributes:
      model: the discriminator.
      execution: how both are computed; never part of a checkpoint.
      generator_width: the generator's width as a fraction of the discriminator's.
      generator_depth: the generator's number of layers as a fraction of the discriminator's.
      temperature: temperature of the softmax that tokens are drawn from.
      mlm: the coefficient of the generator's loss.
      rtd: the coefficient of the discriminator's loss, replaced token detection.

    Raises:
      UserError: the generator's sizes do not fit together.
    """

    terms: ClassVar[tuple[str, ...]] = ("mlm", "rtd")

    model: ElectraConfig
    execution: Execution = Execution()
    generator_width: float = 0.25
    generator_depth: float = 1.0
    temperature: float = 1.0
    mlm: float = 1.0
    rtd: float = 50.0

    def __post_init__(self) -> None:
        check_coefficients(mlm=self.mlm, rtd=self.rtd)
        for name in ("generator_width", "generator_depth", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)} must be above 0")
        self.networks  # noqa: B018  (raises on impossible sizes)

    @property
    @override
    def networks(self) -> Mapping[str, ElectraConfig]:
        return {DISCRIMINATOR: self.model, GENERATOR: self.model.generator(self.generator_width, self.generator_depth)}

    @override
    def split(self, params: Tree) -> dict[str, Tree]:
        heads = {DISCRIMINATOR: "rtd_head", GENERATOR: "mlm_head"}
        trees = {}
        for name in self.networks:
            if name in params:
                own = params[name]
                encoder = own | {"embeddings": params["embeddings"] | own.get("embeddings", {})}
                trees[name] = {"encoder": encoder} | {head: params[head] for head in params.keys() & {heads[name]}}
        return trees

    @override
    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        params: dict[str, Tree] = {}
        for name in self.networks:
            if name in networks:
                heads = dict(networks[name])
                own = dict(heads.pop("encoder"))
                embeddings = dict(own.pop("embeddings"))
                projection = {part: embeddings.pop(part) for part in (_OWN,) if part in embeddings}
                params = {"embeddings": embeddings} | params | heads
                params[name] = own | ({"embeddings": projection} if projection else {})
        return params

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return self._masked(DISCRIMINATOR).features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        of_discriminator = named_key(key, DISCRIMINATOR)
        encoder = init_encoder(self.model, named_key(of_discriminator, "encoder"), shape.length)
        head = init_on_hidden(self.model, replaced_token_head(self.model), named_key(of_discriminator, "rtd_head"))
        generator, carry, aux = self._masked(GENERATOR).init(named_key(key, GENERATOR), shape)
        return self.joined({DISCRIMINATOR: {"encoder": encoder, "rtd_head": head}, GENERATOR: generator}), carry, aux

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        real = jnp.sum((batch["encoder_segment_ids"] > 0).astype(jnp.float32))
        return self._masked(GENERATOR).denominators(batch) | {"rtd": real}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        networks = self.split(params)
        generator = self._masked(GENERATOR)
        hidden = generator.encoded(networks[GENERATOR], batch, key=keys[0], train=train)
        logits = generator.masked_logits(networks[GENERATOR], hidden, batch)
        mlm, accuracy = masked_cross_entropy(logits, batch["masked_target_tokens"], batch["masked_loss_weights"])

        seen, replaced = self.replaced(logits, batch)
        hidden = self._masked(DISCRIMINATOR).encoded(networks[DISCRIMINATOR], seen, key=keys[1], train=train)
        head = replaced_token_head(self.model, self.execution)
        found: Any = head.apply({"params": params["rtd_head"]}, hidden)
        real = (batch["encoder_segment_ids"] > 0).astype(jnp.float32)
        rtd = binary_cross_entropy(found, replaced.astype(jnp.float32), real)
        metrics = {"mlm_loss": Sum(mlm, accuracy.weight), "mlm_accuracy": accuracy, "rtd_loss": Sum(rtd, jnp.sum(real))}
        return LossOut({"mlm": mlm, "rtd": rtd}, carry, metrics | _counts(found > 0, replaced, real))

    def replaced(self, logits: jax.Array, batch: Batch) -> tuple[dict[str, jax.Array], jax.Array]:
        """Replace masked tokens by drawn ones; return the batch, and bool[batch, length]: True where a token is not the text's.

        Args:
          logits: float32[batch, predictions, padded vocabulary], the generator's at the masked positions.
          batch: as the generator sees it.
        """
        inputs, targets = batch["encoder_input_tokens"], batch["masked_target_tokens"]
        places, used = batch["masked_positions"], batch["masked_loss_weights"] > 0
        drawn = sample(logits, keys_of_rows(inputs, targets, places), self.temperature)
        seen = put_positions(inputs, places, drawn, used)
        differs = put_positions(jnp.zeros_like(inputs), places, (drawn != targets).astype(inputs.dtype), used)
        return dict(batch) | {"encoder_input_tokens": seen}, differs > 0

    @override
    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        networks = self.split(params)
        generator = self._masked(GENERATOR)
        states, real = generator.activations(networks[GENERATOR], batch)["encoder"]
        seen, _ = self.replaced(generator.masked_logits(networks[GENERATOR], states[-1], batch), batch)
        found = self._masked(DISCRIMINATOR).activations(networks[DISCRIMINATOR], seen)["encoder"]
        return {DISCRIMINATOR: found, GENERATOR: (states, real)}

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        return self._masked(GENERATOR).predictions(self.split(params)[GENERATOR], batch)

    @override
    def flops(self, shape: RowShape) -> int:
        head = 3 * shape.length * (2 * self.model.hidden_size**2 + 2 * self.model.hidden_size)
        generator = self.networks[GENERATOR].flops(shape.length, shape.predictions)
        return self.model.flops(shape.length, 0) + head + generator

    def _masked(self, name: str) -> Mlm:
        """Return a network as a masked language model; only the encoder of the discriminator's is used."""
        return Mlm(self.networks[name], self.execution)


def _counts(found: jax.Array, replaced: jax.Array, real: jax.Array) -> dict[str, Sum]:
    """Count accuracy, precision and recall, and the majority's accuracy: found, replaced bool[batch, length], real float32."""
    total, of_found, of_replaced = jnp.sum(real), jnp.sum(real * found), jnp.sum(real * replaced)
    both = jnp.sum(real * (found & replaced))
    return {
        "rtd_accuracy": Sum(jnp.sum(real * (found == replaced)), total),
        "rtd_precision": Sum(both, of_found),
        "rtd_recall": Sum(both, of_replaced),
        "rtd_majority_accuracy": Sum(total - of_replaced, total),
    }
