"""Sentence boundaries in six languages, marked by hand with "|"."""

import pickle
import random

import pytest

from bertfam.data.corpora.sentences import LANGUAGES, UNDETERMINED, split_sentences
from bertfam.data.corpora.text_files import TextFiles

MARKED = {
    "en": [
        "Mr. and Mrs. Smith met J. R. R. Tolkien in Washington D.C. | They left, e.g. for St. Louis, at 10.30 a.m. today.",
        "“It is late. We should go,” he said. | Nobody moved! | Why?",
        '"Turned out early. | Had a cold night. | I went on."',
        "Use tf.DType here. | See example.com too. | Version 2.5 costs $3.50. | The end",
        "1. Open the file. | 2. Close it. | (3) Go home.",
        "That was all... ! ? | Well.",
    ],
    "de": [
        "Im 5. Jahrhundert v. Chr. lebte er z. B. in Athen. | Am 28. Oktober kam Dr. Müller. | Das war 1992. | Dann ging er.",
        "Sie sagte: „Ich komme gleich.“ | Er wartete.",
        "„Ja. | Nein.“",
        "Eduard IV. und Richard III. waren Könige. | Prof. Dr. Weiß u. a. kennen sie.",
    ],
    "es": [
        "El Sr. García y la Sra. López llegaron a las 5. | ¿Qué hora es? | ¡Hola! | EE. UU. es grande.",
        "Vio a J. Smith y a D. Quijote. | Véase la pág. 7 del vol. Segundo. | Costó 2.500 euros.",
    ],
    "fr": [
        "Après M. Karoubi, bloqué chez lui, c'est M. Moussavi qui est venu avec Mme. Noir et MM. Blanc. | Il est 5 h.",
        "« Bonjour. Ça va ? » dit-il. | Elle a dit oui. | « Oui. | Non. »",
        "Que rechercher de plus dans une chambre aussi bien décorée... ! | Rien.",
    ],
    "fi": [
        "Hän tuli 12. huhtikuuta klo 5. | Sitten hän lähti. | Esim. tri. Virtanen, ks. s. 5, asuu täällä.",
        "1. Tässä direktiivissä tarkoitetaan seuraavaa. | Muu on toisin.",
    ],
    "zh": [
        "华沙的第一家证券交易所成立于 1817 年。|1991 年得以重建。|总资本 1625.84 亿欧元！|真的吗？|是的……好。",
        "公爵塞尔吉乌斯四世 (Sergius IV) 手中接过据点。|他说：“你好。”|她笑了。",
        "“他说：走吧！”|没有句号",
    ],
}


@pytest.mark.parametrize(("language", "marked"), [(language, text) for language, texts in MARKED.items() for text in texts])
def test_sentences_end_at_the_marked_places(language, marked):
    expected = [sentence.strip() for sentence in marked.split("|")]
    assert split_sentences(marked.replace("| ", "").replace("|", ""), language) == expected


@pytest.mark.parametrize("language", [*LANGUAGES, UNDETERMINED])
def test_splitting_loses_no_text_and_gives_no_empty_sentence(language):
    texts = [
        "",
        " ",
        ".",
        "...",
        '""',
        '"',
        '" "',
        '" . "',
        "1.",
        "1. ",
        "a) ",
        "\n",
        "\u200d",
        "A.\u3000B。 C",
        "“”",
        "!?",
        "「。」 x. ",
    ]
    texts += [text.replace("|", "") for marked in MARKED.values() for text in marked]
    for text in texts:
        sentences = split_sentences(text, language)
        assert all(sentence == sentence.strip() != "" for sentence in sentences)
        assert "".join("".join(sentences).split()) == "".join(text.split())


@pytest.mark.parametrize("language", [*LANGUAGES, UNDETERMINED])
def test_splitting_loses_no_text_around_any_white_space(language):
    """Cover a panic of sentencex: a single letter, white space wider than a byte, and a full stop."""
    generator = random.Random(language)
    spaces = [space for space in map(chr, range(0x3001)) if space.isspace()]
    texts = [f"plan B{space}. Then C{space}{space}. And é{space}.{space}So" for space in spaces]
    alphabet = [*"aBé漢1...!?。…)'\"“”«»", "\u0301", "\u200d", *spaces]
    texts += ["".join(generator.choices(alphabet, k=12)) for _ in range(200)]
    for text in texts:
        sentences = split_sentences(text, language)
        assert all(sentence == sentence.strip() != "" for sentence in sentences)
        assert "".join("".join(sentences).split()) == "".join(text.split())


def test_white_space_within_sentences_is_kept():
    sentences = ["Il a dit\u00a0: «\u202fplan B\u00a0.\u202f» Puis il\u3000est parti\u2009.", "Oui\u00a0!"]
    assert split_sentences(" ".join(sentences), "fr") == sentences


def test_pickled_corpus_splits_the_same_way():
    corpus = TextFiles(("a.txt",), input_format="paragraphs", language="de")
    assert pickle.loads(pickle.dumps(corpus)).sentences(["Am 5. Mai. Es war spät.", "Ende."]) == [
        "Am 5. Mai.",
        "Es war spät.",
        "Ende.",
    ]
