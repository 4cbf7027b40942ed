"""Section 4.2: perplexity of latent Dirichlet allocation by SGRLD and SCIR.

The paper's corpus is Wikipedia. Here it is the docstrings of Python's standard library
(`corpus.py`), with 20 topics, and scikit-learn's variational fit beside it. A fifth of the
documents is held out. All topics are scored on the same words of the same held-out documents
(`diagnose/perplexity.py`): those of SGRLD and SCIR at 20 draws, those of the variational fit at the
mean of its law. Three step sizes per method are scored, and claims are about the best of them.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from tallmc.contrib.simplex import SimplexSampler, lda, perplexity, top_words
from tallmc.results.draws import Draws

from ..chains import quiet_sample
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from .corpus import Corpus, standard_library

N_TOPICS, PRIOR, SWEEPS, SIZE = 20, 0.1, 10, 100
STEP_SIZES = {"SGRLD": (0.001, 0.01, 0.05), "SCIR": (0.01, 0.05, 0.2)}
TRANSITIONS = {"SGRLD": "expanded mean", "SCIR": "cir"}
VARIATIONAL, FREQUENCIES = "variational (scikit-learn)", "frequencies of words, no topics"


def as_stated(setting: ExperimentSetting) -> Result:
    corpus = standard_library()
    held_out = len(corpus.counts) // 5
    test, train = np.split(corpus.counts, [held_out])
    if setting.quick:
        test, train = test[:100], train[:400]
    found: dict[str, dict[str, float]] = {}
    topics: list[list[str]] = []
    for method, step_sizes in STEP_SIZES.items():
        found[method] = {}
        for step_size in step_sizes[1:2] if setting.quick else step_sizes:
            with jax.enable_x64(False):
                draws = _sampled(method, step_size, train, corpus, setting)
            score = perplexity(draws.values["topics"], test, document_prior=PRIOR)
            if method == "SCIR" and score < min(found[method].values(), default=np.inf):
                topics = top_words(draws, n=8)[0]
            found[method][f"{step_size:g}"] = score
    frequency = (train.sum(axis=0) + PRIOR) / (train.sum() + PRIOR * train.shape[1])
    for label, fitted in ((VARIATIONAL, _variational(train)), (FREQUENCIES, frequency[None])):
        found[label] = {"": perplexity(fitted, test, document_prior=PRIOR)}
    best = {label: min(values.values()) for label, values in found.items()}
    claims = [
        Claim(
            "SCIR has a lower perplexity than SGRLD",
            "lower",
            f"{best['SCIR']:.1f} against {best['SGRLD']:.1f}",
            best["SCIR"] < best["SGRLD"],
            required=False,
        ),
        Claim(
            "SCIR predicts held-out words as well as scikit-learn's variational fit",
            "at most 5 % above",
            f"{best['SCIR']:.1f} against {best[VARIATIONAL]:.1f}",
            best["SCIR"] < 1.05 * best[VARIATIONAL],
            required=not setting.quick,
        ),
        Claim(
            "topics predict held-out words better than the frequencies of words",
            "lower",
            f"{best['SCIR']:.1f} against {best[FREQUENCIES]:.1f}",
            best["SCIR"] < best[FREQUENCIES],
        ),
    ]
    n_words = f"{len(train):,} documents, {train.sum():,} words"
    scores = ResultTable(
        f"perplexity per word of {len(test):,} held-out documents, fitted to {n_words}",
        ["topics", "step size", "perplexity"],
        [
            [label, step_size, f"{value:.1f}"]
            for label, values in found.items()
            for step_size, value in values.items()
        ],
    )
    numbered = [[str(number), ", ".join(words)] for number, words in enumerate(topics)]
    words = ResultTable("topics of SCIR", ["topic", "words"], numbered)
    panel = Panel("p", "held-out documents", "step size", "perplexity per word", log_x=True)
    ends = np.array([step for steps in STEP_SIZES.values() for step in (steps[0], steps[-1])])
    span = np.array([ends.min(), ends.max()])
    curves = [
        Curve("p", method, np.array(list(map(float, values))), np.array(list(values.values())))
        for method, values in found.items()
        if method in STEP_SIZES
    ]
    curves += [
        Curve("p", label, span, np.full(2, best[label]), kind="reference")
        for label in (VARIATIONAL, FREQUENCIES)
    ]
    return Result([panel], curves, claims, [scores, words])


def _sampled(
    method: str, step_size: float, train: np.ndarray, corpus: Corpus, setting: ExperimentSetting
) -> Draws:
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
        SimplexSampler(step_size=step_size, batch_size=SIZE, transition=TRANSITIONS[method]),
        chains=1,
        n_draws=20,
        thin=setting.pick(25, 2),
        burn_in=setting.pick(1000, 100),
        seed=1,
        share=setting.part(f"{method}, ε = {step_size:g}"),
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
