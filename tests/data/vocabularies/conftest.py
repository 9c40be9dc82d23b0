"""Text in several languages, and one learnt vocabulary of each kind."""

import warnings

import pytest

from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.learners import make_learner

OTHERS = [
    "Der Bär läuft über die Straße, während die Äpfel fallen.",
    "El niño comió piñas; ¿dónde está la canción?",
    "Näin sinä söit öljyä, eikö niin?",
    "L'élève a reçu « une leçon » à l'école.",
    "日本語の文字は漢字と仮名です。一九二六年、全角１２３。",
    "한국어로 쓴 문장입니다.",
    "emoji 😃 hello😃 and a family 👨‍👩‍👧, a tab\tand\u00a0a no-break space",
    "fi ﬁ ligature … ŉ ︰ ２ and a decomposed cafe\u0301",
    "====== ********** ____ --------------- 1234567890 1,000.50",
    "def f(x):    return {\"a\": x[0], 'b': x ** 2}  # ${x}",
    "BERT writes [MASK] and [SEP] in its input, <extra_id_3> </s> <pad> <mask>, GPT-2 ends with <|endoftext|>.",
]


@pytest.fixture(scope="session")
def lines(corpus):
    """About 800 lines of English and a few of other languages."""
    english = [sentence for document in corpus.documents("train") for sentence in document]
    return [*english[:800], *OTHERS, *OTHERS]


@pytest.fixture(scope="session")
def learn(lines):
    """Learn a vocabulary from `lines`, once for each kind and settings."""
    learnt_by_key = {}

    def learn_once(kind, layout, **options):
        key = (kind, layout, *sorted(options.items()))
        if key not in learnt_by_key:
            learner = make_learner(kind, **({"size": 1200, "layout": LAYOUTS[layout]} | options))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                learnt_by_key[key] = learner.learn(learner.count(lines))
        return learnt_by_key[key]

    return learn_once
