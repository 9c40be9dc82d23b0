"""Retrieval-augmented generation: loss and gradients against transformers, passages before questions, microbatches, mistakes."""

import dataclasses

import jax
import numpy as np
import pytest
import rag_models
from gradients import assert_sums_of_microbatches, compile_loss

from bertfam.decoding.decode import Source
from bertfam.decoding.over_passages import decode_over_passages
from bertfam.decoding.stepper import Ends
from bertfam.decoding.strategies import BeamSearch, Limits
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.interop import huggingface

SHAPE = RowShape(rag_models.LENGTH, 0, 1, rag_models.TARGETS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function of the generator's kind: torch models, objective, parameters, aux, passages and their vectors."""
    pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("rag")
    passages, vectors = rag_models.write_index(folder / "index", 16)

    def make(kind):
        torch_models = rag_models.torch_models(kind, folder)
        objective, params = rag_models.objective_of(kind, folder, folder / "index")
        return torch_models, objective, params, rag_models.read_aux(objective), passages, vectors

    return {kind: make(kind) for kind in ("bart", "t5")}


@pytest.mark.parametrize(("kind", "marginal"), [("bart", "sequence"), ("t5", "token")])
def test_loss_and_gradients_of_transformers(models, kind, marginal):
    """The whole model: question encoder, search, inputs with cut passages, generator, marginal, gradients of both networks."""
    import torch

    (question, generator), objective, params, aux, passages, vectors = models[kind]
    objective, rows = dataclasses.replace(objective, marginal=marginal), rag_models.batch(kind)
    assert {name: value.shape[1:] for name, value in rows.items()} == {
        name: spec.shape for name, spec in objective.features(SHAPE).items()
    }
    model = rag_models.torch_rag(kind, marginal, question, generator)
    inputs, _ = rag_models.torch_inputs(kind, question, rows, passages, vectors)
    assert inputs["context_attention_mask"].sum(1).max() == rag_models.LENGTH  # a passage was cut
    start = np.full((rag_models.BATCH, 1), rag_models.GENERATORS[kind]["start"])
    labels = torch.tensor(np.concatenate([start, rows["decoder_target_tokens"]], axis=1)).long()
    model.zero_grad()
    losses = model(**inputs, labels=labels).loss
    losses.sum().backward()
    with jax.default_matmul_precision("highest"):
        (mean, out), gradients = compile_loss(objective)(params, rows, aux)
    assert out.terms["rag"] == pytest.approx(losses.sum().item(), rel=2e-5)
    assert mean == pytest.approx(losses.mean().item(), rel=2e-5)
    assert out.metrics["rag_loss"].weight == rag_models.BATCH
    networks = objective.split(gradients)
    for name, ours in (("query", networks["query"]), ("encoder_decoder", networks["encoder_decoder"])):
        theirs, config = {"query": question, "encoder_decoder": generator}[name], objective.networks[name]
        named = {path: parameter.grad for path, parameter in theirs.named_parameters()}
        found = huggingface.to_tensors(huggingface.family_of(config), config, jax.tree.map(np.asarray, ours))
        largest = 0.0
        for path, tensor in found.items():
            match = next((one for full, one in named.items() if full.endswith(path.removeprefix("model."))), None)
            if match is not None and match.shape == tensor.shape:
                scale = rag_models.BATCH * tensor
                np.testing.assert_allclose(scale, match.numpy(), atol=2e-4 * max(1.0, float(match.abs().max())), err_msg=path)
                largest = max(largest, float(np.abs(scale).max()))
        assert largest > 1e-3, name


def test_sums_of_microbatches(models):
    _, objective, params, aux, *_ = models["t5"]
    loss = jax.jit(lambda rows, aux: objective.loss(params, {}, aux, rows, key=None, train=False))
    assert_sums_of_microbatches(lambda rows: loss(rows, aux), rag_models.batch("t5", rows=4))


def test_parts_of_the_parameters(models):
    _, objective, params, *_ = models["bart"]
    networks = objective.split(params)
    assert set(networks) == {"encoder_decoder", "query"} and set(networks["query"]) == {"encoder"}
    assert objective.joined(networks).keys() == params.keys()
    assert objective.joined({"encoder_decoder": networks["encoder_decoder"]}).keys() == params.keys() - {"query"}
    shapes = jax.eval_shape(lambda key: objective.init(key, SHAPE), jax.random.key(0))
    frozen = dataclasses.replace(objective, freeze_question_encoder=True).frozen
    assert frozen.trained(params).keys() == networks["encoder_decoder"].keys()
    assert set(shapes[0]) == set(params) and set(shapes[2]["index"]) == {"vectors", "tokens"}


def test_flops(models):
    """Those of both networks, of each passage, and of the inner products."""
    _, objective, *_ = models["t5"]
    encoder, read = (
        objective.question_encoder.model.flops(rag_models.QUESTION, 0),
        objective.model.flops(rag_models.LENGTH, rag_models.TARGETS),
    )
    assert objective.flops(SHAPE) == encoder + rag_models.K * read + 2 * rag_models.COUNT * 16


def test_mistakes(models):
    _, objective, *_ = models["t5"]
    for changes, match in (
        ({"marginal": "word"}, "Rag.marginal is 'word'"),
        ({"passages": 0}, "Rag.passages is 0"),
        ({"question_encoder": dataclasses.replace(objective.question_encoder, shared=False)}, "shared = True"),
        ({"model": objective.question_encoder.model}, "is an encoder"),
    ):
        with pytest.raises(UserError, match=match):
            dataclasses.replace(objective, **changes)
    with pytest.raises(UserError, match="is another index"):
        dataclasses.replace(objective, index_digest="0" * 16).read_aux(rag_models.VOCABULARY)
    with pytest.raises(UserError, match="sample_every = 0"):
        objective.predictions({}, {})


@pytest.mark.parametrize(("marginal", "beams"), [("token", 3), ("sequence", 3)])
def test_decoding_of_transformers(models, marginal, beams):
    """Beam search over the marginal of tokens, and thorough decoding of sequences."""
    import torch

    (question, generator), objective, params, aux, passages, vectors = models["t5"]
    rows, most = rag_models.batch("t5"), 6
    model = rag_models.torch_rag("t5", marginal, question, generator)
    inputs, numbers = rag_models.torch_inputs("t5", question, rows, passages, vectors)
    words = {"num_beams": beams, "max_length": 1 + most, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    with torch.no_grad():
        theirs = model.generate(**{name: value.detach() for name, value in inputs.items()}, **words).numpy()
    networks = objective.split(params)
    with jax.default_matmul_precision("highest"):
        found = jax.jit(lambda rows, aux: objective.retrieve(networks["query"], aux, rows, key=None, train=False))(rows, aux)
        np.testing.assert_array_equal(found.numbers, numbers)
        decoded = decode_over_passages(
            networks["encoder_decoder"],
            Source(found.inputs["encoder_input_tokens"], found.inputs["encoder_segment_ids"]),
            found.log_probabilities,
            np.ones(rag_models.BATCH, bool),
            config=objective.model,
            marginal=marginal,
            strategy=BeamSearch(beams),
            limits=Limits(max_new_tokens=most),
            ends=Ends((1,), 0, 0),
            execution=objective.execution,
        )
    ours = [row[:length].tolist() for row, length in zip(decoded.tokens[:, 0], decoded.lengths[:, 0], strict=True)]
    assert ours == [row[1:][: len(own)].tolist() for row, own in zip(theirs, ours, strict=True)]
    assert len(set(map(tuple, ours))) > 1
