"""The page of `bertfam analyze attention`: its data are the model's, text stays text, and a browser shows it."""

import base64
import json
import re
from html.parser import HTMLParser

import flax.linen as nn
import jax
import numpy as np
import pytest
from browser import needs_chromium, opened

import bertfam
from bertfam import cli
from bertfam.analysis import attention_page
from bertfam.analysis.attention_parts import AttentionPart, Tokens, attention_parts
from bertfam.analysis.head_statistics import head_sums, statistic_features
from bertfam.analysis.subject import Subject
from bertfam.api import LanguageModel, Model
from bertfam.decoding.end_tokens import end_tokens
from bertfam.errors import UserError
from bertfam.models.encoder_decoder import EncoderOnlyConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model
from bertfam.models.t5 import T5Config

HOSTILE = "</script><img src=x onerror=alert(1)> <!--<script>\u202e {{data}}"


class Elements(HTMLParser):
    """The names of a page's elements, and the text of its first script."""

    def __init__(self, page):
        super().__init__()
        self.names, self.data = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data):
        if self.names.count("script") == 1 and self.names[-1] == "script":
            self.data += data


@pytest.fixture(scope="module")
def path(random_model, tmp_path_factory):
    """Return the page of a pair of texts."""
    path = tmp_path_factory.mktemp("attention") / "page.html"
    flags = [f"--model_dir={random_model}", f"--text={HOSTILE}", "--text_pair=Names are bound."]
    assert cli.main(["analyze", "attention", *flags, f"--output={path}"]) == 0
    return path


def decoded(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype)


def test_data_are_those_of_the_model(path, random_model):
    elements = Elements(path.read_text())
    (part,) = json.loads(elements.data)["parts"]
    model = bertfam.load(random_model)
    pieces = part["queries"]["pieces"]
    assert pieces == part["keys"]["pieces"] and pieces[0] == "[CLS]" and pieces[-1] == "[SEP]"
    second = pieces.index("[SEP]") + 1
    assert part["queries"]["texts"] == [-1, *[0] * (second - 2), -1, *[1] * (len(pieces) - second - 1), -1]
    a, b = (model.vocabulary.encode(text).ids for text in (HOSTILE, "Names are bound."))
    ids = model.vocabulary.token_ids
    tokens = np.array([[ids.cls, *a, ids.sep, *b, ids.sep]])
    types = (np.arange(tokens.shape[1]) >= second).astype(int)[None]
    names = ["attention_probs", "attention_queries", "attention_keys"]
    found = {
        name: np.asarray(value)[:, 0]
        for name, value in model.apply(tokens, token_type_ids=types, collect=names).items()
        if name in names
    }
    for layer, own in enumerate(part["layers"]):
        weights = decoded(own["weights"], "<u2").reshape(part["heads"], len(pieces), len(pieces)) / 65535
        np.testing.assert_allclose(weights, found["attention_probs"][layer], atol=1e-5)
        q, k = (
            own[name]["unit"] * decoded(own[name]["values"], "<i2").reshape(len(pieces), part["heads"], part["width"])
            for name in ("queries", "keys")
        )
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(part["width"])
        np.testing.assert_allclose(np.asarray(jax.nn.softmax(scores)), found["attention_probs"][layer], atol=1e-3)


def test_text_stays_text_and_nothing_is_fetched(path):
    page = path.read_text()
    elements = Elements(page)
    assert "img" not in elements.names and elements.names.count("script") == 2
    assert not re.search("https?:|\u202e", page) and "innerHTML" not in page
    assert "default-src 'none'" in page


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_an_error(path, width):
    with opened(path, width) as page:
        assert page.locator("img").count() == 0 and page.locator("#left button").first.inner_text() == "[CLS]"
        token = page.locator("#left button").nth(2)
        token.hover()
        token.click()
        assert token.get_attribute("aria-pressed") == "true"
        page.get_by_role("tab", name="Model view").click()
        assert page.locator("#grid button").count() == 4
        page.get_by_role("tab", name="Query-key view").click()
        assert page.locator("#neurons").inner_text()


def language_model(config, vocabulary):
    """Return a model with random parameters."""
    generator = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: nn.meta.unbox(init_language_model(config, jax.random.key(0))))
    params = jax.tree.map(lambda leaf: 0.3 * generator.standard_normal(leaf.shape, np.float32), shapes)
    return LanguageModel(config, params, vocabulary, end_tokens(config, vocabulary.token_ids))


def test_causal_attention_keeps_only_earlier_keys(vocabulary):
    config = Gpt2Config(vocab_size=vocabulary.size, num_layers=1, hidden_size=16, num_heads=2, max_length=32)
    subject = Subject(language_model(config, vocabulary), 32)
    (part,) = attention_parts(subject, "It returns a value.")
    assert part.name == "decoder" and not np.triu(part.weights, 1).any()
    row = subject.row("It returns a value.")
    features = statistic_features(subject, [row]) | {"valid": np.ones(1, np.float32)}
    sums = jax.jit(head_sums)(part.weights[:, None], features)
    seen = np.log(np.arange(len(row.ids)) + 1)[row.texts >= 0]  # a token sees itself and those before it
    assert sums["uniform_entropy"].tolist() == pytest.approx([seen.sum()], rel=1e-5) and not sums["next"].any()
    data = attention_page._part_data(part, None)
    (pattern,) = data["patterns"]
    length = len(data["queries"]["pieces"])
    assert decoded(pattern["starts"], "<u4").tolist() == [n * (n + 1) // 2 for n in range(length + 1)]
    assert decoded(pattern["keys"], "<u2").tolist() == [key for query in range(length) for key in range(query + 1)]


def test_encoder_decoder_has_three_attentions(vocabulary):
    config = T5Config(
        vocab_size=vocabulary.size,
        num_layers=1,
        num_encoder_layers=1,
        hidden_size=16,
        num_heads=2,
        head_dim=8,
        feed_forward_size=16,
    )
    whole = language_model(config, vocabulary)
    encoder = EncoderOnlyConfig(config)
    subject = Subject(Model(encoder, encoder.params_of(whole.params), vocabulary), 32, whole=whole)
    parts = {part.name: part for part in attention_parts(subject, "It returns a value.", target="Value.")}
    assert list(parts) == ["encoder", "decoder", "cross-attention"]
    source, target = (parts[name].query_tokens.pieces for name in ("encoder", "decoder"))
    cross = parts["cross-attention"]
    assert cross.weights.shape == (1, 2, len(target), len(source)) and cross.keys.shape == (1, len(source), 2, 8)
    assert (cross.query_tokens.pieces, cross.key_tokens.pieces) == (target, source)
    # T5 has no scale, and no bias between decoder and encoder.
    scores = np.einsum("lqhd,lkhd->lhqk", cross.queries, cross.keys)
    np.testing.assert_allclose(np.asarray(jax.nn.softmax(scores)), cross.weights, atol=1e-5)


def test_pages_that_would_be_too_large_are_refused(monkeypatch):
    tokens = Tokens(["a"] * 100, [0] * 100)
    values = np.ones((2, 100, 2, 4), np.float32)
    part = AttentionPart("encoder", tokens, tokens, np.full((2, 2, 100, 100), 0.01, np.float32), values, values)
    monkeypatch.setattr(attention_page, "MOST_BYTES", 60_000)
    with pytest.raises(UserError, match=r"with 100 tokens, more than 0 MB: shorten the text, by --length=\d\d, say"):
        attention_page.page("title", [part])
    with pytest.raises(UserError, match="--layers has 3, and the layers of the encoder are 1 to 2"):
        attention_page.page("title", [part], [3])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layers=1-2"], "--layers=1-2 is no list of numbers; write --layers=1,2"),
        (["--length=0"], "--length=0 is less than 1"),
        (["--length=2"], "rows of 2 tokens are too short for control tokens and text: raise --length"),
        (["--target=a"], "--target does not go with an encoder; leave it out"),
    ],
)
def test_mistakes_are_one_line(random_model, tmp_path, capsys, flags, message):
    output = tmp_path / "page.html"
    assert cli.main(["analyze", "attention", f"--model_dir={random_model}", "--text=a", f"--output={output}", *flags]) == 2
    assert capsys.readouterr().err == f"bertfam: error: {message}\n" and not output.exists()


def test_groups_of_commands(capsys):
    assert cli.main(["analyze", "--help"]) == 0
    assert "analyze attention" in capsys.readouterr().out
    names = [name.removeprefix("analyze ") for name in cli.COMMANDS if name.startswith("analyze ")]
    for words, message in (
        (["analyze"], f"no command given after analyze; one of {', '.join(names)}"),
        (["analyze", "head"], "unknown command analyze head; did you mean heads?"),
    ):
        assert cli.main(words) == 2
        assert capsys.readouterr().err == f"bertfam: error: {message}\n"
