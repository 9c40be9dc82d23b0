"""Twenty AdamW steps from the same weights on the same batches give torch's losses (contract 4)."""

from functools import partial

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn

from bertfam.features import RowShape
from bertfam.interop import huggingface
from bertfam.layers.execution import Execution
from bertfam.objectives.bert import MlmNsp
from bertfam.objectives.causal_lm import CausalLm
from bertfam.objectives.fine_tuning.heads import Classification
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.sequence_to_sequence import SequenceToSequence
from bertfam.training.optimizers import AdamW
from bertfam.training.schedules import LinearDecay
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState
from bertfam.training.step import make_train_step

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STEPS, ROWS, SHAPE = 20, 8, RowShape(length=16, predictions=4, targets=12)
ADAMW = AdamW(LinearDecay(peak=2e-3, warmup_steps=5), b2=0.98, epsilon=1e-6, weight_decay=0.1, clip_norm=0.5)


def batches():
    # Four batches take turns, so that the losses fall; their rows have very different numbers of predictions.
    return [tiny.batch(ROWS, SHAPE, seed=step % 4, predictions=[4, 1, 2, 0, 3, 4, 0, 1]) for step in range(STEPS)]


def masked_loss(model, batch, pairs):
    """Return torch's loss at masked tokens; `pairs` is True for a model with token types and a next-sentence head."""
    tensors = {name: torch.from_numpy(value).long() for name, value in batch.items() if value.dtype == np.int32}
    types = {"token_type_ids": tensors["encoder_token_type_ids"]} if pairs else {}
    out = model(tensors["encoder_input_tokens"], attention_mask=tensors["encoder_segment_ids"], **types)
    used = torch.from_numpy(batch["masked_loss_weights"]) > 0
    row = torch.arange(ROWS)[:, None].expand(used.shape)[used]
    logits = (out.prediction_logits if pairs else out.logits)[row, tensors["masked_positions"][used]]
    loss = torch.nn.functional.cross_entropy(logits, tensors["masked_target_tokens"][used])
    if pairs:
        loss += torch.nn.functional.cross_entropy(out.seq_relationship_logits, tensors["next_sentence_labels"][:, 0])
    return loss


def decoder_loss(model, batch, has_encoder):
    """Return torch's label-smoothed loss at all targets of a decoder; `has_encoder` is True for an encoder-decoder."""
    tensors = {name: torch.from_numpy(value).long() for name, value in batch.items() if value.dtype == np.int32}
    inputs, real = tensors["decoder_input_tokens"], tensors["decoder_segment_ids"]
    if has_encoder:
        encoder_inputs = {"input_ids": tensors["encoder_input_tokens"], "attention_mask": tensors["encoder_segment_ids"]}
        logits = model(**encoder_inputs, decoder_input_ids=inputs, decoder_attention_mask=real).logits
    else:
        logits = model(inputs, attention_mask=real).logits
    labels = torch.where(torch.from_numpy(batch["decoder_loss_weights"]) > 0, tensors["decoder_target_tokens"], -100)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING)


def labelled_batches():
    """Yield batches of texts of two classes, of which four take turns."""
    for step, batch in enumerate(batches()):
        labels = np.random.default_rng(step % 4).integers(0, 2, (ROWS, 1)).astype(np.float32)
        read = {name: value for name, value in batch.items() if name.startswith(("encoder", "sequence"))}
        yield read | {"labels": labels, "label_weights": np.ones_like(labels)}


def label_loss(model, batch):
    """Return torch's loss of a classifier of texts."""
    tensors = {name: torch.from_numpy(value).long() for name, value in batch.items()}
    types = {"token_type_ids": tensors["encoder_token_type_ids"]}
    return model(
        tensors["encoder_input_tokens"], attention_mask=tensors["encoder_segment_ids"], labels=tensors["labels"][:, 0], **types
    ).loss


def torch_losses(model, loss_of, batches):
    """Return the losses before each update, and the gradient norms."""
    not_decayed = [p for p in model.parameters() if p.ndim == 1]  # biases and norms
    decayed = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": decayed, "weight_decay": ADAMW.weight_decay}, {"params": not_decayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW.schedule.peak, betas=(ADAMW.b1, ADAMW.b2), eps=ADAMW.epsilon)
    rates = [min((s + 1) / 5, (STEPS - s - 1) / (STEPS - 5)) for s in range(STEPS)]
    model.train()
    losses, norms = [], []
    for step, batch in enumerate(batches):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW.clip_norm)))
        for group in optimizer.param_groups:
            group["lr"] = ADAMW.schedule.peak * rates[step]
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def jax_losses(objective, params, batches):
    optimizer = ADAMW.build(STEPS, jax.eval_shape(lambda key: objective.init(key, SHAPE)[0], jax.random.key(0)))
    params = jax.tree.map(jax.numpy.asarray, params)
    zero = jax.numpy.zeros((), "int32")
    opt_state = jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), jax.eval_shape(optimizer.init, params))
    state = TrainState(zero, params, opt_state, {}, {}, {}, zero)
    step = jax.jit(make_train_step(Phase.of(objective), optimizer))
    losses, norms = [], []
    for batch in batches:
        state, metrics = step(state, batch, tiny.SEED)
        losses.append(float(metrics["loss"].total))
        norms.append(float(metrics["gradient_norm"].total))
    return losses, norms


def bert():
    config = transformers.BertConfig(
        vocab_size=tiny.VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
        attn_implementation="eager",
    )
    return transformers.BertForPreTraining(config)


def modernbert():
    """Return a ModernBERT whose layers are global, local, local, global, local, with a window of 6 on rows of up to 16."""
    config = transformers.ModernBertConfig(
        vocab_size=tiny.VOCABULARY,
        hidden_size=32,
        num_hidden_layers=5,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=32,
        local_attention=6,
        pad_token_id=None,
        initializer_range=0.1,
        attn_implementation="eager",
    )
    return transformers.ModernBertForMaskedLM(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=tiny.VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    return transformers.GPT2LMHeadModel(config)


def t5():
    """Return a T5 with tied embeddings, as version 1.0 has."""
    config = transformers.T5Config(
        vocab_size=tiny.VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        dropout_rate=0.0,
        attn_implementation="eager",
    )
    return transformers.T5ForConditionalGeneration(config)


SMOOTHING = 0.1
CASES = [
    (bert, MlmNsp, partial(masked_loss, pairs=True)),
    (modernbert, Mlm, partial(masked_loss, pairs=False)),
    (gpt2, partial(CausalLm, label_smoothing=SMOOTHING, chunk=5), partial(decoder_loss, has_encoder=False)),
    (t5, partial(SequenceToSequence, label_smoothing=SMOOTHING, chunk=5), partial(decoder_loss, has_encoder=True)),
]


@pytest.mark.parametrize(("make", "kind", "loss_of"), CASES)
def test_losses_of_twenty_steps_match_torch(tmp_path, make, kind, loss_of):
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():  # including biases and norms
            parameter += 0.02 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    imported = huggingface.read(tmp_path)
    objective = kind(imported.config, execution=Execution())
    expected, norms = theirs = torch_losses(model, loss_of, batches())
    assert_equal_losses(theirs, jax_losses(objective, imported.params, batches()))
    assert expected[-1] < expected[0] - 0.4  # the model learned
    assert min(norms) > 0.5  # every gradient was clipped


def test_losses_of_twenty_steps_of_fine_tuning_match_torch(tmp_path):
    torch.manual_seed(0)
    bert().save_pretrained(tmp_path / "start")
    config = huggingface.read(tmp_path / "start").config
    objective = FineTuning(config, Classification(("bad", "good")))
    params = jax.device_get(nn.meta.unbox(objective.init(jax.random.key(0), SHAPE)[0]))
    huggingface.write(tmp_path / "classifier", config, params, extra=objective.huggingface_values)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier")
    theirs = torch_losses(model, label_loss, labelled_batches())
    assert_equal_losses(theirs, jax_losses(objective, params, labelled_batches()))
    assert theirs[0][-1] < theirs[0][0] - 0.1


def assert_equal_losses(theirs, ours):
    (expected, expected_norms), (losses, norms) = theirs, ours
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-3)
