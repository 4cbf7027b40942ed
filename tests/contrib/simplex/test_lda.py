"""Latent Dirichlet allocation: Gibbs sweeps by enumeration, recovered topics, perplexity."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

import tallmc
from tallmc._core.random import new_key
from tallmc._rows.law import Batch
from tallmc.contrib.simplex import NO_WORD, assigned, word_numbers

LARGEST_Z = 4.6
TOPICS = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
DOCUMENT_PRIOR = np.array([0.3, 0.8])


def exact_probabilities(words):
    """P(z_l = k | words, φ) by enumeration of all assignments; θ_d integrated out."""
    total, found = 0.0, np.zeros((len(words), 2))
    for z in itertools.product(range(2), repeat=len(words)):
        counts = np.bincount(z, minlength=2)
        weight = np.exp(gammaln(DOCUMENT_PRIOR + counts).sum())
        weight *= np.prod(TOPICS[list(z), words])
        total += weight
        found[np.arange(len(words)), z] += weight
    return found / total


def gibbs_z(words, document_prior=DOCUMENT_PRIOR, copies=400, sweeps=200):
    """|z| of the mean probabilities of independent runs of sweeps, against enumeration."""
    padded = np.append(words, [NO_WORD, NO_WORD])
    documents = jnp.tile(jnp.asarray(padded), (copies, 1))
    found = assigned(
        jnp.asarray(TOPICS), jnp.asarray(document_prior), documents, sweeps, new_key(3)
    )
    shares = np.asarray(found.probabilities)
    assert (shares[:, len(words) :] == 0).all(), "an absent word has no topic"
    wanted = exact_probabilities(words)
    np.testing.assert_allclose(np.asarray(found.counts).sum(axis=1), len(words), rtol=1e-12)
    real = shares[:, : len(words)]
    error = real.std(axis=0) / copies**0.5
    z_counts = (found.counts.mean(axis=0) - wanted.sum(axis=0)) / (
        np.asarray(found.counts).std(axis=0) / copies**0.5
    )
    return max(np.abs((real.mean(axis=0) - wanted) / error).max(), np.abs(z_counts).max())


def test_gibbs_sweeps_agree_with_the_enumeration_of_all_assignments():
    words = np.array([0, 0, 1, 2, 2])
    assert gibbs_z(words) < LARGEST_Z
    assert gibbs_z(words, document_prior=DOCUMENT_PRIOR[::-1]) > LARGEST_Z


def test_expected_counts_are_the_weighted_sum_over_documents():
    documents = np.array([[2, 0, 1], [0, 3, 0]])
    posterior = tallmc.contrib.simplex.lda(documents, n_topics=2, sweeps=4)
    batch = Batch(posterior.rows.columns, jnp.array([10.0, 0.5]))
    counts = posterior.model.expected_counts(jnp.asarray(TOPICS), batch, new_key(0))
    # Every word is in some topic, so the sums over topics are known.
    np.testing.assert_allclose(counts.sum(axis=0), [20.0, 1.5, 10.0], rtol=1e-12)
    assert (np.asarray(counts) >= 0).all()


def test_documents_become_word_numbers():
    found = word_numbers(np.array([[2, 0, 1], [0, 1, 0]]))
    np.testing.assert_array_equal(found, [[0, 0, 2], [1, NO_WORD, NO_WORD]])


def simulated(n_documents, rng, n_topics=3, n_words=15, length=40):
    """Documents of topics that have five words each."""
    topics = np.full((n_topics, n_words), 0.01)
    for k in range(n_topics):
        topics[k, 5 * k : 5 * k + 5] = 1.0
    topics /= topics.sum(axis=1, keepdims=True)
    shares = rng.dirichlet(np.full(n_topics, 0.2), n_documents)
    return topics, np.stack([rng.multinomial(length, p) for p in shares @ topics])


@pytest.fixture(scope="module")
def fitted():
    topics, documents = simulated(140, np.random.default_rng(1))
    words = [f"word {number}" for number in range(15)]
    posterior = tallmc.contrib.simplex.lda(
        documents[:100], n_topics=3, document_prior=0.2, vocabulary=words, sweeps=10
    )
    method, settings = (
        tallmc.contrib.simplex.scir(0.1, batch_size=20),
        {"burn_in": 600, "progress": False},
    )
    with pytest.warns(tallmc.SamplingWarning):
        draws = tallmc.sample(posterior, method, chains=2, n_draws=300, **settings)
    return topics, documents[100:], draws


def test_topics_are_recovered_up_to_their_order(fitted):
    topics, _, draws = fitted
    for mean in draws.values["topics"].mean(axis=1):
        distances = 0.5 * np.abs(mean[:, None] - topics[None]).sum(axis=-1)
        matched = distances[linear_sum_assignment(distances)]
        # 4,000 words in 15 categories: total variation of an estimate of known topics is 0.04.
        assert matched.max() < 0.12, matched


def test_top_words_are_those_of_the_topics(fitted):
    _, _, draws = fitted
    wanted = sorted([f"word {number}" for number in range(5 * k, 5 * k + 5)] for k in range(3))
    for chain in tallmc.contrib.simplex.top_words(draws, n=5):
        found = sorted(sorted(topic, key=lambda word: int(word[5:])) for topic in chain)
        assert found == wanted


def test_perplexity_is_close_to_that_of_the_true_topics(fitted):
    topics, held_out, draws = fitted
    of_draws = tallmc.contrib.simplex.perplexity(
        draws.values["topics"], held_out, document_prior=0.2, sweeps=20, most_draws=5
    )
    of_truth = tallmc.contrib.simplex.perplexity(topics, held_out, document_prior=0.2, sweeps=20)
    uniform = tallmc.contrib.simplex.perplexity(np.full((1, 15), 1 / 15), held_out)
    assert uniform == pytest.approx(15, rel=1e-12)
    assert of_truth < of_draws < 1.05 * of_truth < 0.7 * uniform


def test_perplexity_of_one_topic_is_the_entropy_of_its_words():
    """With one topic the proportions are 1, so the perplexity is exp(−mean log φ)."""
    topic, documents = np.array([[0.7, 0.2, 0.1]]), np.array([[50, 30, 20]])
    observed = np.random.default_rng(5).binomial(documents, 0.5)
    scored = documents - observed
    wanted = np.exp(-(scored * np.log(topic)).sum() / scored.sum())
    found = tallmc.contrib.simplex.perplexity(topic, documents, seed=5)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"documents": [[1, 0], [0, 0]]}, "at least one word"),
        ({"documents": [[1, 0.5]]}, "be counts"),
        ({"n_topics": 0}, "n_topics"),
        ({"topic_prior": -1.0}, "topic_prior"),
        ({"vocabulary": ["one"]}, "vocabulary"),
        ({"sweeps": 0}, "sweeps"),
    ],
)
def test_bad_documents_are_answered(arguments, match):
    given = {"documents": [[1, 2], [3, 0]], "n_topics": 2, **arguments}
    with pytest.raises(tallmc.InvalidInput, match=match):
        tallmc.contrib.simplex.lda(**given)


def test_bad_topics_are_answered():
    with pytest.raises(tallmc.InvalidInput, match="sum to 1"):
        tallmc.contrib.simplex.perplexity(np.ones((2, 2)), [[1, 2]])
    with pytest.raises(tallmc.InvalidInput, match="2 words"):
        tallmc.contrib.simplex.perplexity(TOPICS, [[1, 2]])
