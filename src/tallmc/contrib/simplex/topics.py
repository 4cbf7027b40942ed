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

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from ..._core.arrays import Layout, Vector, check_numeric, layout_of
from ..._core.errors import InvalidInput, check_int
from ..._core.programs import quickly_compiled
from ..._core.random import derived_keys, new_key, random_words, uniform_of
from ..._rows.law import Batch
from ..._rows.resident import ResidentRows
from ...models.posterior import ModelPosterior
from .counts import (
    AbstractCountsModel,
    checked_counts,
    checked_labels,
    checked_prior,
    counts_posterior,
)
from .transitions import normalised

# Latent Dirichlet allocation: topics of documents (Blei, Ng and Jordan, 2003).
#
#     φ_k ~ Dirichlet(β) for topics k,   θ_d ~ Dirichlet(a) for documents d
#     z_dl ~ θ_d,   x_dl ~ φ_{z_dl}      for word l of document d
#
# A row is a document. The sampler moves the topics φ; the proportions θ_d are integrated out and
# the assignments z are drawn anew for the documents of a batch (Patterson and Teh, 2013, section
# 4):
#
#     P(z_dl = k | z_−dl, φ) ∝ (a_k + n_dk^{−l}) φ_{k, x_dl}
#     n̂_kv = Σ_d w_d Σ_{l: x_dl = v} P(z_dl = k | z_−dl, φ)
#
# The counts are averages of these probabilities over the second half of `sweeps` Gibbs sweeps per
# document. The bias of too few sweeps does not vanish with the step size. The first sweep assigns a
# word given the words before it. The cost of a step is proportional to sweeps × the longest
# document × topics × documents in the batch, and to topics × vocabulary for the move.

NO_WORD = -1  # Fills documents up to the longest one

Topics = Float[Array, "topics words"]
PerTopic = Float[Array, " topics"]
Documents = Int[Array, "documents longest"]


class LatentDirichletAllocation(AbstractCountsModel):
    """Rows are documents, as vectors of word numbers."""

    prior: Topics
    document_prior: PerTopic
    init: Vector
    layout: Layout
    sweeps: int = eqx.field(static=True)

    def expected_counts(self, simplex: Topics, batch: Batch, key: PRNGKeyArray) -> Topics:
        found = assigned(simplex, self.document_prior, batch.rows, self.sweeps, key)
        weighted = found.probabilities * batch.weights[:, None, None]
        words = jnp.where(batch.rows == NO_WORD, 0, batch.rows)  # their probabilities are 0
        return jnp.zeros_like(simplex.T).at[words].add(weighted).T


class Assignments(NamedTuple):
    """Averages over Gibbs sweeps of the assignments of documents."""

    # P(z_dl = k | the other assignments), zero where there is no word.
    probabilities: Float[Array, "documents longest topics"]
    counts: Float[Array, "documents topics"]  # n_dk, the words of a topic


def assigned(
    topics: Topics, prior: PerTopic, documents: Documents, sweeps: int, key: PRNGKeyArray
) -> Assignments:
    """Gibbs sweeps over the assignments of documents, given the topics."""
    of_documents = jax.vmap(_assigned_words, in_axes=(None, None, 0, None, 0))
    keys = derived_keys(key, documents.shape[0])
    return of_documents(topics, prior, documents, sweeps, keys)


def _assigned_words(
    topics: Topics, prior: PerTopic, words: Int[Array, " longest"], sweeps: int, key: PRNGKeyArray
) -> Assignments:
    present = (words != NO_WORD).astype(topics.dtype)
    likelihoods = topics.T[words] * present[:, None]
    uniforms = uniform_of(random_words(key, (sweeps, len(words)))[..., 0], topics.dtype)
    n_topics = len(prior)

    def word(counts: Array, given: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        likelihood, before, u = given
        others = counts - before
        probability = (prior + others) * likelihood
        cumulative = jnp.cumsum(probability)
        chosen = jnp.sum(u * cumulative[-1] > cumulative)
        # An absent word has the likelihood 0, and is in no topic.
        now = (jnp.arange(n_topics) == chosen) * (cumulative[-1] > 0).astype(counts.dtype)
        share = probability / jnp.maximum(cumulative[-1], jnp.finfo(counts.dtype).tiny)
        return others + now, (now, share)

    def sweep(carry: tuple[Array, ...], given: tuple[Array, Array]) -> tuple[Any, None]:
        counts, before, total, total_counts = carry
        u, kept = given
        counts, (now, share) = lax.scan(word, counts, (likelihoods, before, u))
        return (counts, now, total + kept * share, total_counts + kept * counts), None

    none = jnp.zeros((len(words), n_topics), topics.dtype)
    kept = np.arange(sweeps) >= sweeps // 2
    start = (jnp.zeros_like(prior), none, none, jnp.zeros_like(prior))
    given = (uniforms, jnp.asarray(kept, topics.dtype) / kept.sum())
    (_, _, total, total_counts), _ = lax.scan(sweep, start, given)
    return Assignments(total, total_counts)


def lda(
    documents: Any,
    n_topics: int,
    *,
    topic_prior: ArrayLike = 0.1,
    document_prior: ArrayLike = 0.1,
    vocabulary: Sequence[str] | None = None,
    sweeps: int = 20,
    seed: int = 0,
) -> ModelPosterior:
    """Topics of documents by latent Dirichlet allocation.

    **Arguments:**

    - `documents`: a matrix of word counts, one row per document and one column per word of the
      vocabulary; an array or a SciPy sparse matrix, such as `CountVectorizer` returns.
    - `n_topics`: the number of topics.
    - `topic_prior`: β, a positive number or one per word. Small values make topics sparse.
    - `document_prior`: a, a positive number or one per topic.
    - `vocabulary`: the words, in the order of the columns.
    - `sweeps`: Gibbs sweeps per document and step. The second half of them is averaged.
    - `seed`: seed of the topics at which all chains start.

    **Returns:** a posterior with the quantity `topics`, probabilities of words by topic. The
    order of topics has no meaning, and chains may have different orders.

    >>> import numpy as np, tallmc
    >>> documents = np.array([[3, 2, 0, 0], [2, 4, 0, 0], [0, 0, 3, 3], [0, 0, 1, 4]])
    >>> words = ["cell", "gene", "star", "moon"]
    >>> posterior = tallmc.contrib.simplex.lda(documents, n_topics=2, vocabulary=words)
    >>> method = tallmc.contrib.simplex.scir(step_size=0.2, batch_size=4)
    >>> draws = tallmc.sample(posterior, method, chains=1, n_draws=200, progress=False)
    >>> sorted(sorted(words) for words in tallmc.contrib.simplex.top_words(draws, n=2)[0])
    [['cell', 'gene'], ['moon', 'star']]
    """
    counts = checked_counts("documents", documents, "document")
    empty = np.flatnonzero(counts.sum(axis=1) == 0)
    if empty.size:
        cure = "Drop documents without words."
        raise InvalidInput("documents", "have at least one word each", f"row {empty[0]}", cure)
    n_topics, n_words = check_int("n_topics", n_topics, 1), counts.shape[1]
    beta = np.tile(checked_prior("topic_prior", topic_prior, n_words), (n_topics, 1))
    rng = np.random.default_rng(check_int("seed", seed, 0))
    of_documents = checked_prior("document_prior", document_prior, n_topics)
    # Near the frequencies of all words; each topic differs at random.
    frequency = (counts.sum(axis=0) + 1) / (counts.sum() + n_words)
    start = frequency * rng.gamma(1.0, size=beta.shape)
    start *= beta.sum(axis=1, keepdims=True) / start.sum(axis=1, keepdims=True)
    layout, init = layout_of({"theta": jnp.asarray(start, float)})
    model = LatentDirichletAllocation(
        prior=jnp.asarray(beta, float),
        document_prior=jnp.asarray(of_documents, float),
        init=init,
        layout=layout,
        sweeps=check_int("sweeps", sweeps, 1),
    )
    description = {
        "family": "latent Dirichlet allocation",
        "topics": str(n_topics),
        "words": f"{n_words:,}",
        "sweeps": str(sweeps),
    }
    coords = checked_labels("vocabulary", vocabulary, n_words, "word")
    rows = ResidentRows(jnp.asarray(word_numbers(counts)))
    return counts_posterior(model, rows, "topics", ("topic", "word"), coords, description)


def word_numbers(
    counts: Int[np.ndarray, "documents words"],
) -> Int[np.ndarray, "documents longest"]:
    """Documents as vectors of word numbers, filled up with `NO_WORD`."""
    lengths = counts.sum(axis=1)
    found = np.full((len(counts), max(1, lengths.max())), NO_WORD, np.int32)
    documents, words = np.nonzero(counts)
    found[np.arange(found.shape[1]) < lengths[:, None]] = np.repeat(words, counts[documents, words])
    return found


def top_words(draws: Any, n: int = 10) -> list[list[list[str]]]:
    """The most probable words of the mean topics of every chain.

    The order of topics may differ between chains, so topics are averaged within chains only.

    **Arguments:**

    - `draws`: draws of a posterior of `lda`.
    - `n`: how many words per topic.

    **Returns:** for every chain and topic a list of words, the most probable word first. Words are
    numbers, as text, if the posterior has no vocabulary.

    >>> import numpy as np, tallmc
    >>> documents = np.array([[9, 0], [0, 9]])
    >>> posterior = tallmc.contrib.simplex.lda(documents, n_topics=1, vocabulary=["sun", "rain"])
    >>> method = tallmc.contrib.simplex.scir(step_size=0.2, batch_size=2)
    >>> draws = tallmc.sample(posterior, method, chains=1, n_draws=50, progress=False)
    >>> sorted(top_words(draws, n=2)[0][0])
    ['rain', 'sun']
    """
    quantities = getattr(draws, "quantities", None)
    if quantities is None or "topics" not in quantities.shapes:
        raise InvalidInput("draws", "be draws of tallmc.contrib.simplex.lda", type(draws).__name__)
    words = quantities.coords.get("word") or tuple(map(str, range(quantities.shapes["topics"][1])))
    n = check_int("n", n, 1, len(words))
    mean = quantities.of(draws.positions)["topics"].mean(axis=1)
    order = np.argsort(-mean, axis=-1)[..., :n]
    return [[[words[word] for word in topic] for topic in chain] for chain in order]


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
    - `document_prior`: a, as in `lda`.
    - `sweeps`: Gibbs sweeps over the observed words per document and draw.
    - `most_draws`: how many draws are used at most, at equal distances.
    - `seed`: seed of the division of the words and of the sweeps.

    **Returns:** the perplexity of the scored half of the words.
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
    # Each word is observed or scored with probability ½.
    observed = np.random.default_rng(check_int("seed", seed, 0)).binomial(counts, 0.5)
    scored = counts - observed
    if not scored.any():
        raise InvalidInput("documents", "have words to score", f"{counts.sum()} words")
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


@quickly_compiled
def _proportions(
    topics: Topics, prior: PerTopic, words: Documents, sweeps: int, key: PRNGKeyArray
) -> Float[Array, "documents topics"]:
    return normalised(prior + assigned(topics, prior, words, sweeps, key).counts)
