"""Fine-tuning of a network: a head on top of it predicts labels of texts or of words (Devlin et al. 2019, section 4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features
from bertfam.kernels.chunked_cross_entropy import NO_TOKEN_LOGIT
from bertfam.layers.execution import Execution
from bertfam.layers.heads.classification import Classifier
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions
from bertfam.models.network import NetworkConfig
from bertfam.objectives.fine_tuning.bodies import BODIES, Body, last_positions
from bertfam.objectives.fine_tuning.heads import Head
from bertfam.objectives.fine_tuning.probe import PROBE, LinearProbe
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import Batch, LossOut, Objective, Predictions, Sum, Tree
from bertfam.plurals import plural

_POOLER, _MIX = "pooler", "scalar_mix"
_READ = ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids", "sequence_start_positions")


@dataclass(frozen=True)
class FineTuning(Objective):
    """L = mean over labels of the head's loss.

    `init` makes params {"encoder", "classifier"}, and "pooler" where the family's classifier has one; for words
    {"encoder", "token_classifier"}. A causal LM has {"embeddings", "decoder"} in the place of the encoder, and an encoder-decoder
    {"embeddings", "encoder", "decoder"}.

    Attributes:
      model: the network; the config of its family constructs its heads by the methods `classifier`, of texts, `token_classifier`
        and `span_classifier`.
      head: what is predicted.
      execution: how it is computed; never part of a checkpoint.
      freeze: "encoder": the network is not trained, and computed without dropout (Devlin et al. 2019, section 5.3); a number: its
        embeddings and as many of its lowest layers are not trained; None: all is trained.
      probe: linear layer in the place of the family's head; None: the family's head.
    """

    model: NetworkConfig
    head: Head
    execution: Execution = Execution()
    freeze: Literal["encoder"] | int | None = None
    probe: LinearProbe | None = None

    terms: ClassVar[tuple[str, ...]] = ("label",)

    def __post_init__(self) -> None:
        method = self.head.part
        if not hasattr(type(self.model), method):
            raise UserError(
                f"{type(self.model).__name__} has no {method}, so it cannot be fine-tuned here; name an encoder's, such as "
                f"BertConfig (a family of your own needs the method `{method}`), or generate texts with --target"
            )

        if self.freeze not in (None, "encoder") and not (isinstance(self.freeze, int) and self.freeze > 0):
            raise UserError(f'FineTuning.freeze is {self.freeze!r}: it must be "encoder", a number of layers above 0, or None')
        layers, layer = self.model.num_layers, self.probe.layer if self.probe else 0
        if layer != "mix" and not -layers - 1 <= layer <= layers:
            raise UserError(f"LinearProbe.layer is {layer}, and the encoder has {plural(layers, 'layer')}: give 0 to {layers}")
        if self.freeze is not None:
            self._body.frozen(None if self.freeze == "encoder" else self.freeze)

    @property
    def _body(self) -> Body:
        return BODIES[self.model.kind]

    @property
    def part(self) -> str:
        """Name of the parameters of the head."""
        return PROBE if self.probe else self.head.part

    @property
    @override
    def frozen(self) -> Frozen:
        return Frozen() if self.freeze is None else self._body.frozen(None if self.freeze == "encoder" else self.freeze)

    @property
    @override
    def networks(self) -> Mapping[str, Any]:
        return {self.model.kind: self.model}

    @override
    def split(self, params: Tree) -> dict[str, Tree]:
        return {self.model.kind: params}

    @override
    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        return networks[self.model.kind]

    @property
    @override
    def huggingface_values(self) -> Mapping[str, Any]:
        return self.head.huggingface()

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        longest = self.model.max_length
        if longest is not None and shape.length // self.head.choices > longest:
            limit = f"{type(self.model).__name__}.max_length {longest}"
            length = f"Stage.length {shape.length}" + (f" for {self.head.choices} choices" if self.head.choices > 1 else "")
            raise UserError(f"{length} is more than {limit}; shorten the rows (--length)")
        return encoder_features(shape) | self.head.features(shape)

    @override
    def sequence_shape(self, shape: RowShape) -> RowShape:
        return shape._replace(length=shape.length // self.head.choices)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        classifier = self._classifier
        params = self._body.init(self.model, key, shape.length)
        hidden = jnp.zeros((1, self._body.width(self.model)), jnp.float32)
        if classifier.pooler is not None:
            params[_POOLER] = classifier.pooler.init(named_key(key, _POOLER), hidden)["params"]
        if classifier.mix is not None:
            states = jnp.zeros((self.model.num_layers + 1, *hidden.shape), jnp.float32)
            params[_MIX] = classifier.mix.init(named_key(key, _MIX), states)["params"]
        part = self.part
        params[part] = classifier.output.init(named_key(key, part), hidden, train=False)["params"]
        return params, {}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"label": jnp.sum(self.head.weights(batch["labels"], batch["label_weights"]))}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        outputs = self.outputs(params, batch, key=key, train=train)
        if outputs.ndim == 3:  # padding has no share of a softmax over positions
            outputs = jnp.where(batch["encoder_segment_ids"][..., None] > 0, outputs, NO_TOKEN_LOGIT)
        loss, metrics = self.head.loss(outputs, batch["labels"], batch["label_weights"])
        total = Sum(loss, self.denominators(batch)["label"])
        return LossOut({"label": loss}, carry, {"label_loss": total} | metrics)

    def outputs(self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> jax.Array:
        """Compute the outputs of the head for each row float32[batch, outputs], or each token float32[batch, length, outputs]."""
        classifier, choices = self._classifier, self.head.choices
        if choices > 1:
            # [batch, choices * length] -> [batch * choices, length]
            batch = {name: value.reshape(value.shape[0] * choices, -1) for name, value in batch.items() if name in _READ}
        keys = (None, None) if key is None else jax.random.split(key)
        body = self._body
        reads_states = classifier.layer is not None or classifier.mix is not None
        hidden, collected = body.hidden(
            classifier.encoder or body.networks(self.model, self.execution),
            params,
            batch,
            train=train and self.freeze != "encoder",
            collect={"hidden_states"} if reads_states else (),
            rngs=self.execution.dropout_rngs(keys[0]),
        )
        if classifier.layer is not None:
            hidden = collected["hidden_states"][classifier.layer]
        if classifier.mix is not None:
            mix: Any = classifier.mix
            hidden = mix.apply({"params": params[_MIX]}, collected["hidden_states"])
        # [batch, length, embed] -> [batch, embed], of texts
        if classifier.pooling is None:
            pooled = hidden
        elif classifier.pooling == "cls":
            pooled = gather_positions(hidden, batch["sequence_start_positions"])[:, 0]
        elif classifier.pooling == "last":
            pooled = gather_positions(hidden, last_positions(batch["encoder_segment_ids"])[:, None])[:, 0]
        else:
            pooled = mean_of_tokens(hidden, batch["encoder_segment_ids"])
        if classifier.pooler is not None:
            pooler: Any = classifier.pooler
            pooled = pooler.apply({"params": params[_POOLER]}, pooled)
        outputs: Any = classifier.output.apply(
            {"params": params[self.part]}, pooled, train=train, rngs=self.execution.dropout_rngs(keys[1])
        )
        # [batch * choices, 1] -> [batch, choices]
        return outputs.reshape(-1, choices) if choices > 1 else outputs

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        raise UserError("FineTuning predicts labels, and samples are of tokens: set Run.sample_every = 0")

    @property
    def _classifier(self) -> Classifier:
        if self.probe is None:
            return self.head.classifier(self.model, self.execution)
        return self.probe.classifier(self.head, self.execution)

    @override
    def flops(self, shape: RowShape) -> int:
        # A frozen encoder has no backward pass, which takes two thirds of the products.
        choices = self.head.choices
        flops = choices * self._body.flops(self.model, shape.length // choices)
        return flops // (3 if self.freeze == "encoder" else 1)


def mean_of_tokens(hidden: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Average the hidden states [batch, length, embed] of the tokens of each row, in float32; return [batch, embed]."""
    is_token = (segment_ids > 0).astype(jnp.float32)[..., None]
    total = jnp.sum(hidden.astype(jnp.float32) * is_token, axis=1)
    return (total / jnp.maximum(jnp.sum(is_token, axis=1), 1.0)).astype(hidden.dtype)
