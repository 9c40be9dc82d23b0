"""Fine-tuning of a network: a head on top of it predicts labels of texts or of words (Devlin et al. 2019, section 4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.compression.quantization import Quantization
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape
from bertfam.kernels.chunked_cross_entropy import NO_TOKEN_LOGIT, VocabularyLoss, chunked_cross_entropy
from bertfam.layers.execution import Execution
from bertfam.layers.heads.classification import Classifier
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions
from bertfam.models.language_model import head_weights
from bertfam.models.network import NetworkConfig
from bertfam.objectives.fine_tuning.bodies import BODIES, Body, last_positions
from bertfam.objectives.fine_tuning.gates import GATES, HeadGates
from bertfam.objectives.fine_tuning.heads import Head
from bertfam.objectives.fine_tuning.lora import ADAPTERS, Lora
from bertfam.objectives.fine_tuning.probe import PROBE, LinearProbe
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import Batch, LossOut, Objective, Predictions, Sum, Tree, check_coefficients
from bertfam.plurals import plural

_POOLER, _MIX = "pooler", "scalar_mix"
_READ = ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids", "sequence_start_positions")


@dataclass(frozen=True)
class FineTuning(Objective):
    """L = mean over labels of the head's loss + lm * mean over texts of the mean over tokens t of -log p(x_t | x_1 .. x_t-1).

    The second term is the auxiliary objective of a causal LM (Radford et al. 2018, section 3.2, equation 5, where lm is lambda,
    0.5). The means are those of the published code.

    `init` makes params {"encoder", "classifier"}, and "pooler" where the family's classifier has one; for words
    {"encoder", "token_classifier"}. A causal LM has {"embeddings", "decoder"} in the place of the encoder, and an encoder-decoder
    {"embeddings", "encoder", "decoder"}. `lora` adds "adapters", and `gates` adds "gates".

    Attributes:
      model: the network; the config of its family constructs its heads by the methods `classifier`, of texts, `token_classifier`
        and `span_classifier`.
      head: what is predicted.
      execution: how it is computed; never part of a checkpoint.
      freeze: "encoder": the network is not trained, and computed without dropout (Devlin et al. 2019, section 5.3); a number: its
        embeddings and as many of its lowest layers are not trained; None: all is trained.
      probe: linear layer in the place of the family's head; None: the family's head.
      lm: coefficient of a causal LM's loss on the texts; 0: it is not computed.
      lora: low-rank adapters, which are trained in the place of the network; None: there are none.
      quantization: rounding of the network's kernels and of their inputs in every product, so that the network is trained for
        `bertfam quantize` (Jacob et al. 2018, section 3); None: there is none.
      gates: gates of the attention heads, trained with a loss that closes them, as the term "gates"; None: there are none.
    """

    model: NetworkConfig
    head: Head
    execution: Execution = Execution()
    freeze: Literal["encoder"] | int | None = None
    probe: LinearProbe | None = None
    lm: float = 0.0
    lora: Lora | None = None
    quantization: Quantization | None = None
    gates: HeadGates | None = None

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
        if self.freeze is not None and self.lora is not None:
            raise UserError("FineTuning.freeze and FineTuning.lora (--lora) both say what is trained; leave one of them out")
        if self.freeze is not None:
            self._body.frozen(None if self.freeze == "encoder" else self.freeze)
        check_coefficients(**self.coefficients)
        if self.quantization is not None:
            self._check_quantization(self.quantization)
        if self.gates is not None and self.lora is not None:
            raise UserError("FineTuning.gates remove heads, and FineTuning.lora leaves their kernels: set one of them to None")
        if self.lm and (self.model.kind != "decoder" or not getattr(self.model, "tie_embeddings", True)):
            raise UserError(
                f"FineTuning.lm (--lm_weight) is {self.lm:g}, and this {type(self.model).__name__} is no causal LM whose head is "
                "its word table: set it to 0"
            )

    def _check_quantization(self, quantization: Quantization) -> None:
        if self.lora is not None:
            raise UserError(
                "FineTuning.quantization rounds kernels, and those of FineTuning.lora change only when they are merged: set one "
                "of them to None"
            )
        if (quantization.activations, quantization.bits) != ("dynamic", 8):
            raise UserError(
                "FineTuning.quantization trains for int8 kernels and dynamic ranges of their inputs: leave activations "
                "and bits of Quantization out, and choose others by `bertfam quantize` afterwards"
            )

    @property
    def _body(self) -> Body:
        return BODIES[self.model.kind]

    @property
    @override
    def coefficients(self) -> Mapping[str, float]:
        gates = {"gates": self.gates.penalty} if self.gates else {}
        return {"label": 1.0} | ({"lm": self.lm} if self.lm else {}) | gates

    @property
    def part(self) -> str:
        """Name of the parameters of the head."""
        return PROBE if self.probe else self.head.part

    @property
    @override
    def frozen(self) -> Frozen:
        if self.lora is not None:
            return self._body.frozen(None)
        return Frozen() if self.freeze is None else self._body.frozen(None if self.freeze == "encoder" else self.freeze)

    @property
    @override
    def networks(self) -> Mapping[str, Any]:
        return {self.model.kind: self.model}

    @override
    def split(self, params: Tree) -> dict[str, Tree]:
        params = params if self.lora is None else self.lora.merged(params)
        return {self.model.kind: params if self.gates is None else self.gates.merged(params)}

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
        return self._body.features(self.model, shape) | self.head.features(shape)

    @override
    def sequence_shape(self, shape: RowShape) -> RowShape:
        return shape._replace(length=shape.length // self.head.choices)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        classifier = self._classifier
        params = self._body.init(self.model, key, shape.length)
        adapters = self.lora.init(named_key(key, ADAPTERS), params) if self.lora else None
        gates = self.gates.init(params) if self.gates else None
        hidden = jnp.zeros((1, self._body.width(self.model)), jnp.float32)
        if classifier.pooler is not None:
            params[_POOLER] = classifier.pooler.init(named_key(key, _POOLER), hidden)["params"]
        if classifier.mix is not None:
            states = jnp.zeros((self.model.num_layers + 1, *hidden.shape), jnp.float32)
            params[_MIX] = classifier.mix.init(named_key(key, _MIX), states)["params"]
        part = self.part
        params[part] = classifier.output.init(named_key(key, part), hidden, train=False)["params"]
        if adapters is not None:
            params[ADAPTERS] = adapters
        if gates is not None:
            params[GATES] = gates
        return params, {}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        found = {"label": jnp.sum(self.head.weights(batch["labels"], batch["label_weights"]))}
        if self.lm:
            found["lm"] = jnp.sum(_next_token_weights(self._texts(batch)["encoder_segment_ids"]))
        # Each part of a batch has its share of the number of open heads.
        return found | ({"gates": found["label"]} if self.gates else {})

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        outputs, hidden = self._applied(params, batch, key=key, train=train)
        if outputs.ndim == 3:  # padding has no share of a softmax over positions
            outputs = jnp.where(batch["encoder_segment_ids"][..., None] > 0, outputs, NO_TOKEN_LOGIT)
        loss, metrics = self.head.loss(outputs, batch["labels"], batch["label_weights"])
        labels = self.denominators(batch)["label"]
        terms, metrics = {"label": loss}, {"label_loss": Sum(loss, labels)} | metrics
        if self.gates:
            terms["gates"] = labels * self.gates.open_heads(params)
            metrics |= {"open_heads": jax.lax.stop_gradient(Sum(terms["gates"], labels))}
        if self.lm:
            terms["lm"], own = self._lm_loss(params, hidden, self._texts(batch))
            metrics |= own
        return LossOut(terms, carry, metrics)

    def _texts(self, batch: Batch) -> Batch:
        """Return what the network reads of each text: a row of a batch, or with choices one of its parts."""
        choices = self.head.choices
        if choices == 1:
            return batch
        # [batch, choices * length] -> [batch * choices, length]
        return {name: value.reshape(value.shape[0] * choices, -1) for name, value in batch.items() if name in _READ}

    def _lm_loss(self, params: Tree, hidden: jax.Array, texts: Batch) -> tuple[jax.Array, dict[str, Sum]]:
        """Compute the language model's term and its metrics from hidden states [texts, length, embed]."""
        model: Any = self.model
        head, weights = head_weights(model, params), _next_token_weights(texts["encoder_segment_ids"])
        targets = jnp.roll(texts["encoder_input_tokens"], -1, axis=1)
        hidden = (hidden * head.scale).astype(self.execution.compute_dtype)
        sums = chunked_cross_entropy(hidden, head.kernel, head.bias, targets, weights, VocabularyLoss(model.require_vocab_size))
        total = jnp.sum(weights)
        metrics = {"lm_loss": Sum(sums.cross_entropy, total), "lm_accuracy": Sum(sums.correct, total)}
        return sums.loss, jax.lax.stop_gradient(metrics)

    def outputs(self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> jax.Array:
        """Compute the outputs of the head for each row float32[batch, outputs], or each token float32[batch, length, outputs]."""
        return self._applied(params, batch, key=key, train=train)[0]

    def _applied(self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> tuple[jax.Array, jax.Array]:
        """Return the outputs of the head, and the hidden states [texts, length, embed] of the network's last layer."""
        classifier, choices, batch = self._classifier, self.head.choices, self._texts(batch)
        params = params if self.lora is None else self.lora.placed(params)
        params = params if self.quantization is None else self.quantization.in_training(params)
        if self.gates is not None:
            params = self.gates.placed(params, named_key(key, GATES) if train and key is not None else None)
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
        read = hidden
        if classifier.layer is not None:
            read = collected["hidden_states"][classifier.layer]
        if classifier.mix is not None:
            mix: Any = classifier.mix
            read = mix.apply({"params": params[_MIX]}, collected["hidden_states"])
        # [batch, length, embed] -> [batch, embed], of texts
        if classifier.pooling is None:
            pooled = read
        elif classifier.pooling == "cls":
            pooled = gather_positions(read, batch["sequence_start_positions"])[:, 0]
        elif classifier.pooling == "last":
            pooled = gather_positions(read, last_positions(batch["encoder_segment_ids"])[:, None])[:, 0]
        else:
            pooled = mean_of_tokens(read, batch["encoder_segment_ids"])
        if classifier.pooler is not None:
            pooler: Any = classifier.pooler
            pooled = pooler.apply({"params": params[_POOLER]}, pooled)
        outputs: Any = classifier.output.apply(
            {"params": params[self.part]}, pooled, train=train, rngs=self.execution.dropout_rngs(keys[1])
        )
        # [batch * choices, 1] -> [batch, choices]
        return outputs.reshape(-1, choices) if choices > 1 else outputs, hidden

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
        # A frozen encoder has no backward pass, which takes two thirds of the products; with adapters it has the gradients of the
        # inputs, and not those of its kernels.
        choices = self.head.choices
        flops = choices * self._body.flops(self.model, shape.length // choices)
        if self.lm:
            flops += 6 * shape.length * self._body.width(self.model) * int(self.model.require_vocab_size)
        return flops * (1 if self.freeze == "encoder" else 2 if self.lora else 3) // 3


def _next_token_weights(segment_ids: jax.Array) -> jax.Array:
    """Return for segment ids int32[texts, length] the weight of each token's prediction of the next: float32[texts, length].

    Those of a text sum to 1; a text of one token has no prediction.
    """
    has_next = jnp.pad(segment_ids[:, 1:] > 0, ((0, 0), (0, 1))).astype(jnp.float32)
    return has_next / jnp.maximum(jnp.sum(has_next, axis=1, keepdims=True), 1.0)


def mean_of_tokens(hidden: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Average the hidden states [batch, length, embed] of the tokens of each row, in float32; return [batch, embed]."""
    is_token = (segment_ids > 0).astype(jnp.float32)[..., None]
    total = jnp.sum(hidden.astype(jnp.float32) * is_token, axis=1)
    return (total / jnp.maximum(jnp.sum(is_token, axis=1), 1.0)).astype(hidden.dtype)
