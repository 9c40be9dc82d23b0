"""Tiny models and passages of tests of retrieval-augmented generation, for ours and for transformers' classes."""

import dataclasses
import types

import numpy as np

from bertfam.interop import huggingface
from bertfam.layers.execution import Execution
from bertfam.objectives.retrieval.dual_encoder import DualEncoder
from bertfam.objectives.retrieval.rag import INDEX, Rag
from bertfam.retrieval.index import Index

VOCABULARY_SIZE = 101
BATCH, COUNT, K, TARGETS, LENGTH, QUESTION = 3, 12, 4, 5, 20, 7
SIZES = {"d_model": 32, "dropout": 0.0}
SIZES |= {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in (("attention_heads", 4), ("ffn_dim", 40))}
SIZES |= {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 30}
GENERATORS = {
    "bart": {"pad": 1, "end": 2, "start": 2, "lead": [0]},
    "t5": {"pad": 0, "end": 1, "start": 0, "lead": []},
}


def _randomised(model, folder):
    """Randomise all parameters of a torch model, scales around 1, and save it."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            parameter.normal_(1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0, 0.3)
    model.save_pretrained(folder)
    return model


def torch_models(kind, folder):
    """Return a DPR question encoder and a generator with random parameters, saved in folders."""
    import transformers

    dpr = transformers.DPRConfig(
        vocab_size=VOCABULARY_SIZE, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    if kind == "bart":
        config = transformers.BartConfig(vocab_size=VOCABULARY_SIZE, **SIZES)
        generator = transformers.BartForConditionalGeneration(config)
    else:
        sizes = {"d_model": 32, "d_kv": 8, "num_heads": 3, "d_ff": 40, "num_layers": 1, "dropout_rate": 0.0}
        config = transformers.T5Config(vocab_size=VOCABULARY_SIZE, decoder_start_token_id=0, **sizes)
        generator = transformers.T5ForConditionalGeneration(config)
    question = _randomised(transformers.DPRQuestionEncoder(dpr), folder / "question")
    return question, _randomised(generator, folder / kind)


def objective_of(kind, folder, index, **changes):
    """Return the objective and its parameters, from folders that `torch_models` saved."""
    question, generator = (huggingface.read(folder / name) for name in ("question", kind))
    encoder = DualEncoder(question.config, query_length=QUESTION, projection=None, temperature=0.5)
    execution = Execution(layers="unroll")
    objective = Rag(generator.config, encoder, str(index), passages=K, passage_length=LENGTH, execution=execution)
    params = objective.joined({"encoder_decoder": generator.params, "query": {"encoder": question.params["encoder"]}})
    return dataclasses.replace(objective, **changes), params


def write_index(folder, width, count=COUNT, seed=5):
    """Write an index of random vectors and passages, whose texts are the ids of their tokens; return the passages."""
    generator = np.random.default_rng(seed)
    passages = [generator.integers(3, VOCABULARY_SIZE, size) for size in generator.integers(1, LENGTH, count)]
    index = Index(folder, count, width, count, {"model": {"folder": "none"}})
    index.create()
    vectors = generator.normal(0, 0.3, (count, width)).astype(np.float32)
    index.write_shard(0, vectors, [" ".join(map(str, passage)) for passage in passages])
    return passages, vectors


def encode_batch(texts):
    """Return the tokens of the texts of `write_index`."""
    return [np.array(text.split(), np.int32) for text in texts]


VOCABULARY = types.SimpleNamespace(encode_batch=encode_batch, size=VOCABULARY_SIZE)


def read_aux(objective):
    """Return the arrays of the objective's index, in memory."""
    return {INDEX: {name: rows[slice(0, rows.shape[0]), :] for name, rows in objective.read_aux(VOCABULARY)[INDEX].items()}}


def batch(kind, rows=BATCH, seed=0):
    """Return rows of questions and answers of several lengths."""
    form, generator = GENERATORS[kind], np.random.default_rng(seed)

    def padded(texts, length, pad=0):
        return np.array([[*text, *[pad] * (length - len(text))] for text in texts], np.int32)

    def drawn(least, most):
        return [generator.integers(3, VOCABULARY_SIZE, size).tolist() for size in generator.integers(least, most + 1, rows)]

    asked, read = drawn(2, QUESTION), [[*form["lead"], *text, form["end"]] for text in drawn(2, QUESTION)]
    targets = [[*text, form["end"]] for text in drawn(1, TARGETS - 1)]
    real = padded([[1] * len(text) for text in targets], TARGETS)
    return {
        "question_input_tokens": padded(asked, QUESTION),
        "question_segment_ids": padded([[1] * len(text) for text in asked], QUESTION),
        "question_token_type_ids": np.zeros((rows, QUESTION), np.int32),
        "question_start_positions": np.zeros((rows, 1), np.int32),
        "encoder_input_tokens": padded(read, LENGTH, form["pad"]),
        "encoder_segment_ids": padded([[1] * len(text) for text in read], LENGTH),
        "decoder_input_tokens": padded([[form["start"], *text[:-1]] for text in targets], TARGETS, form["pad"]),
        "decoder_target_tokens": padded(targets, TARGETS, form["pad"]),
        "decoder_segment_ids": real,
        "decoder_loss_weights": real.astype(np.float32),
    }


def torch_inputs(kind, question_encoder, rows, passages, vectors):
    """Return transformers' context_input_ids, context_attention_mask and doc_scores of the best passages, and their numbers."""
    import torch

    form = GENERATORS[kind]
    tokens, mask = (torch.tensor(rows[f"question_{name}"]).long() for name in ("input_tokens", "segment_ids"))
    hidden = question_encoder(tokens, attention_mask=mask)[0]
    scores = hidden @ torch.tensor(vectors).T / 0.5
    numbers = scores.detach().topk(K, dim=1)[1]
    joined = []
    for row, best in enumerate(numbers.tolist()):
        size = rows["encoder_segment_ids"][row].sum()
        own = rows["encoder_input_tokens"][row, len(form["lead"]) : size].tolist()
        for number in best:
            room = LENGTH - size
            joined.append([*form["lead"], *passages[number][:room].tolist(), *own])
    real = torch.tensor([[1] * len(text) + [0] * (LENGTH - len(text)) for text in joined])
    inputs = torch.tensor([[*text, *[form["pad"]] * (LENGTH - len(text))] for text in joined])
    doc_scores = torch.gather(scores, 1, numbers)
    return {"context_input_ids": inputs, "context_attention_mask": real, "doc_scores": doc_scores}, numbers.numpy()


def torch_rag(kind, marginal, question, generator):
    """Return transformers' model of both."""
    import transformers

    config = transformers.RagConfig.from_question_encoder_generator_configs(question.config, generator.config, n_docs=K)
    config.bos_token_id = None
    if kind == "t5":
        config.generator.bos_token_id = None  # which get_nll reads, and T5's configuration has not (5.24)
    name = {"sequence": "RagSequenceForGeneration", "token": "RagTokenForGeneration"}[marginal]
    return getattr(transformers, name)(config=config, question_encoder=question, generator=generator).eval()
