"""Section 4.2: perplexity of latent Dirichlet allocation by SGRLD and SCIR.

The paper's corpus is Wikipedia. Here it is the docstrings of Python's standard library
(`corpus.py`), with 20 topics, and scikit-learn's variational fit beside it. A fifth of the
documents is held out. All topics are scored on the same words of the same held-out documents
(`diagnose/perplexity.py`): those of SGRLD and SCIR at 20 draws, those of the variational fit at the
mean of its law.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from ...diagnose.perplexity import perplexity
from ...methods.simplex import SimplexSampler
from ...models import lda, top_words
from ...results.draws import Draws
from ..chains import quiet_sample
from ..results import Claim, ExperimentSetting, Result, ResultTable
from .corpus import Corpus, standard_library

N_TOPICS, PRIOR, SWEEPS, SIZE = 20, 0.1, 10, 100
STEP_SIZES = {"SGRLD": 0.01, "SCIR": 0.05}
TRANSITIONS = {"SGRLD": "expanded mean", "SCIR": "cir"}


def as_stated(setting: ExperimentSetting) -> Result:
    corpus = standard_library()
    held_out = len(corpus.counts) // 5
    test, train = np.split(corpus.counts, [held_out])
    if setting.quick:
        test, train = test[:100], train[:400]
    with jax.enable_x64(False):
        draws = {method: _sampled(method, train, corpus, setting) for method in TRANSITIONS}
    topics: dict[str, Float[np.ndarray, "*draws topics words"]] = {
        method: found.values["topics"] for method, found in draws.items()
    }
    topics["variational (scikit-learn)"] = _variational(train)
    frequency = (train.sum(axis=0) + PRIOR) / (train.sum() + PRIOR * train.shape[1])
    topics["frequencies of words, no topics"] = frequency[None]
    found = {
        label: perplexity(values, test, document_prior=PRIOR) for label, values in topics.items()
    }
    best = found["variational (scikit-learn)"]
    claims = [
        Claim(
            "SCIR has a lower perplexity than SGRLD",
            "lower",
            f"{found['SCIR']:.1f} against {found['SGRLD']:.1f}",
            found["SCIR"] < found["SGRLD"],
            required=not setting.quick,
        ),
        Claim(
            "SCIR predicts held-out words as well as scikit-learn's variational fit",
            "at most 5 % above",
            f"{found['SCIR']:.1f} against {best:.1f}",
            found["SCIR"] < 1.05 * best,
            required=not setting.quick,
        ),
    ]
    n_words = f"{len(train):,} documents, {train.sum():,} words"
    scores = ResultTable(
        f"perplexity per word of {len(test):,} held-out documents, fitted to {n_words}",
        ["topics", "perplexity"],
        [[label, f"{value:.1f}"] for label, value in found.items()],
    )
    words = ResultTable(
        "topics of SCIR",
        ["topic", "words"],
        [
            [str(number), ", ".join(topic)]
            for number, topic in enumerate(top_words(draws["SCIR"], n=8)[0])
        ],
    )
    return Result([], [], claims, [scores, words])


def _sampled(method: str, train: np.ndarray, corpus: Corpus, setting: ExperimentSetting) -> Draws:
    posterior = lda(
        train,
        N_TOPICS,
        topic_prior=PRIOR,
        document_prior=PRIOR,
        vocabulary=corpus.vocabulary,
        sweeps=SWEEPS,
    )
    return quiet_sample(
        posterior,
        SimplexSampler(step_size=STEP_SIZES[method], size=SIZE, transition=TRANSITIONS[method]),
        chains=1,
        draws=20,
        thin=setting.pick(25, 2),
        burn_in=setting.pick(1500, 60),
        seed=1,
        share=setting.part(method),
    )


def _variational(train: np.ndarray) -> Float[np.ndarray, "topics words"]:
    from sklearn.decomposition import LatentDirichletAllocation  # a slow import

    fitted = LatentDirichletAllocation(
        n_components=N_TOPICS,
        doc_topic_prior=PRIOR,
        topic_word_prior=PRIOR,
        learning_method="batch",
        max_iter=100,
        random_state=0,
    ).fit(train)
    return fitted.components_ / fitted.components_.sum(axis=1, keepdims=True)
