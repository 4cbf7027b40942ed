"""Perplexity of topics on held-out documents, by document completion.

The words of every held-out document are divided at random into an observed and a scored part. The
observed words estimate the proportions of topics; the scored words are predicted:

    p(v | d) = (1/S) Σ_s Σ_k E[θ_dk | observed words, φ_s] φ_skv
    E θ_dk = (a_k + E n_dk)/(a. + n_d)
    perplexity = exp(−Σ_d Σ_v n_dv^scored log p(v | d) / Σ n^scored)

E n_dk is an average over Gibbs sweeps given the topics φ_s of draw s (Wallach et al., 2009, section
5). A uniform guess has the perplexity V, the number of words of the vocabulary.
The estimate has a noise of its own through the random parts and the Gibbs sweeps.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from ..core.arrays import check_numeric
from ..core.compiler import quickly_compiled
from ..core.errors import InvalidInput, check_int
from ..core.random import new_key
from ..models.counts import checked_counts, checked_prior
from ..models.lda import assigned, word_numbers


def perplexity(
    topics: ArrayLike,
    documents: Any,
    *,
    document_prior: ArrayLike = 0.1,
    sweeps: int = 50,
    most_draws: int = 20,
    seed: int = 0,
) -> float:
    """Perplexity per word of held-out documents.

    **Arguments:**

    - `topics`: probabilities of words by topic, (..., topics, words): `draws.values["topics"]`, or
      the topics of any other fit. Leading axes are draws, whose predictions are averaged.
    - `documents`: word counts of documents that were not used in the fit.
    - `document_prior`: a, as in `tallmc.models.lda`.
    - `sweeps`: Gibbs sweeps over the observed words per document and draw.
    - `most_draws`: how many draws are used at most, at equal distances.
    - `seed`: seed of the division of the words and of the sweeps.

    **Returns:** the perplexity of the scored half of the words.

    **Raises:** `InvalidInput` if the topics are not probabilities or do not fit the documents.

    >>> topics, documents = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([[20, 0], [0, 20]])
    >>> perplexity(topics, documents) < perplexity(np.full((1, 2), 0.5), documents)
    True
    """
    phi = np.asarray(check_numeric("topics", topics), np.float64)
    counts = checked_counts("documents", documents, "document")
    if phi.ndim < 2 or phi.shape[-1] != counts.shape[1]:
        rule = f"have a last axis of {counts.shape[1]} words, as the documents"
        raise InvalidInput("topics", rule, f"shape {phi.shape}")
    if not np.allclose(phi.sum(axis=-1), 1, rtol=0, atol=1e-3) or not (phi >= 0).all():
        cure = "Divide each topic by its sum."
        raise InvalidInput("topics", "be probabilities that sum to 1", "other numbers", cure)
    phi = phi.reshape(-1, *phi.shape[-2:])
    most = check_int("most_draws", most_draws, 1)
    phi = phi[np.unique(np.linspace(0, len(phi) - 1, most).astype(int))]
    observed, scored = split_words(counts, check_int("seed", seed, 0))
    prior = jnp.asarray(checked_prior("document_prior", document_prior, phi.shape[1]), float)
    words = jnp.asarray(word_numbers(observed))
    keys = jax.random.split(new_key(seed), len(phi))
    sweeps = check_int("sweeps", sweeps, 1)
    total = np.zeros(counts.shape)
    for draw, key in zip(phi, keys, strict=True):
        shares = _proportions(jnp.asarray(draw, float), prior, words, sweeps, key)
        total += np.asarray(shares, np.float64) @ draw
    used = scored > 0
    with np.errstate(divide="ignore"):
        log_p = np.log(total[used] / len(phi))
    return float(np.exp(-np.sum(scored[used] * log_p) / scored.sum()))


def split_words(
    counts: Int[np.ndarray, "documents words"], seed: int
) -> tuple[Int[np.ndarray, "documents words"], Int[np.ndarray, "documents words"]]:
    """Each word is observed or scored with probability ½."""
    observed = np.random.default_rng(seed).binomial(counts, 0.5)
    if not (counts - observed).any():
        raise InvalidInput("documents", "have words to score", f"{counts.sum()} words")
    return observed, counts - observed


@quickly_compiled
def _proportions(
    topics: Float[Array, "topics words"],
    prior: Float[Array, " topics"],
    words: Int[Array, "documents longest"],
    sweeps: int,
    key: Array,
) -> Float[Array, "documents topics"]:
    counts = prior + assigned(topics, prior, words, sweeps, key).counts
    return counts / jnp.sum(counts, axis=1, keepdims=True)
