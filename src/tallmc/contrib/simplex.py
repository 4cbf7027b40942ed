"""Points on simplices: moves of positive θ whose normalised last axis is such a point.

Counts n of K categories with probabilities w and the prior w ~ Dirichlet(α) have the posterior
w ~ Dirichlet(α + n). The chain moves θ > 0 with w = θ/θ., where θ. = Σ_k θ_k, from *estimated*
counts n̂ ≥ 0 of all rows. Both moves use the step size ε of the library: the drift of a step is ε/2
times the drift below, as in θ' = θ − (ε/2)∇f̂ + √ε η. A step lasts h = ε/2 in the time of the
papers' processes.

Expanded mean (SGRLD), Patterson and Teh (2013). The metric is diag(1/θ):

    θ' = |θ + (ε/2)(α − θ + n̂ − n̂.θ/θ.) + √(εθ) η|,   η ~ N(0, I)

Without reflection and with n̂ = 0 the stationary variance is α/(1 − ε/4), so the bias is small where
θ ≫ ε. Near zero the noise √(εθ) exceeds θ itself, and θ is about ε whatever α is: components that
should be close to zero are far too large. The bias vanishes with ε, slowly.

Cox–Ingersoll–Ross (SCIR), Baker, Fearnhead, Fox and Nemeth (2018). The process
dθ = ½(â − θ)dt + √θ dW with â = α + n̂ has the exact transition, with c = 1 − e^{−h},

    θ' = (c/2) W,   W ~ χ²(2â, 2θe^{−h}/c):   θ' = c·Gamma(â + J, 1),   J ~ Poisson(θe^{−h}/c)

It has no discretisation error: with n̂ = n the law Gamma(α + n, 1) is invariant at every h, and w
is exactly Dirichlet(α + n). With independent unbiased n̂ of variance v the stationary mean of θ is
still α + n. From V = e^{−2h}V + c²(α + n) + 2ce^{−h}(α + n) + c²v its variance is

    V = α + n + v(1 − e^{−h})/(1 + e^{−h}),

which is the bias of subsampling alone.

The cost of a move is one normal (SGRLD), or one Poisson and one gamma variable (SCIR), per
component. θ has a floor, the least normal number of its dtype, because a gamma variable with
α = 0.01 is below it with probability 0.4 in float32. The floor changes w by less than 10⁻³⁷/θ. .
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from .._anchor.anchor import Anchor
from .._core.arrays import (
    ComputedQuantities,
    Layout,
    Scalar,
    Vector,
    check_numeric,
    layout_of,
    on_device,
)
from .._core.errors import InvalidInput, check_int, outcome_of
from .._core.programs import quickly_compiled
from .._core.random import derived_keys, new_key, random_words, standard_normal, uniform_of
from .._engine.kernel import AbstractKernel, BoundKernel, ChainState, Drawn, Gathered, KernelStep
from .._rows.access import AbstractRows, PerRow, RowBlock
from .._rows.law import Batch
from .._rows.resident import ResidentRows
from ..dynamics.dynamics import PositionState
from ..methods.abstract import AbstractMethod, PreparedMethod, check_row_access, labels
from ..methods.method import StepSize
from ..methods.registry import named
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior, ModelPosterior, check_posterior
from ..schedule import AbstractSchedule, as_schedule, in_precision
from ..subsample import Fixed, SubsampleChoice, Uniform
from ..subsample.selection import AbstractStaticSelection, SubsampleContext

__all__ = [
    "AbstractGammaTransition",
    "CoxIngersollRoss",
    "ExpandedMean",
    "dirichlet_multinomial",
    "lda",
    "perplexity",
    "scir",
    "sgrld_simplex",
    "top_words",
]

# Gamma and Poisson variables for whole arrays.
#
# JAX draws gamma variables one after the other on CPUs, at 1 to 3 µs each, and its rejection step
# for Poisson variables cancels in float32 at large rates. Here a loop proposes for all entries at
# once until all have accepted, usually 3 to 6 times, at about 0.2 µs per entry.
#
# Gamma (Marsaglia and Tsang, 2000): with d = a − 1/3, x ~ N(0, 1) and y = x/√(9d), accept
# d(1 + y)³ if y > −1 and
#
#     log u < x²/2 + d(1 − v + log v) = 3d(log(1 + y) − y + y²/2 − y³/3),   v = (1 + y)³
#
# Shapes a < 1 use Gamma(a) = Gamma(a + 1) U^{1/a}. The last form does not cancel for large d.
#
# Poisson: by inversion for rates λ ≤ 50. Larger rates use the expansion of Cornish and Fisher
# λ + √λ z + (z² − 1)/6 + (z − z³)/(72√λ), whose values are not integers. A gamma variable of shape
# a + J with such a J has a law within 10⁻⁵ of the exact one in Kolmogorov's distance.

_LARGE_RATE = 50.0
Vectors = Float[Array, "*k"]


def gamma_variables(key: PRNGKeyArray, shape: Vectors) -> Vectors:
    """A draw of Gamma(a, 1) for every a > 0 in `shape`; NaN where a is not a number."""
    boost_key, loop_key = derived_keys(key, 2)
    boosted = jnp.where(shape < 1, shape + 1, shape)
    d = boosted - 1 / 3
    scale = 1 / jnp.sqrt(9 * d)

    def propose(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        attempt, drawn, done = carry
        normal_key, uniform_key = derived_keys(jax.random.fold_in(loop_key, attempt), 2)
        y = scale * standard_normal(normal_key, shape.shape, shape.dtype)
        log_u = jnp.log(_uniform(uniform_key, shape))
        limit = 3 * d * (jnp.log1p(y) - y + y**2 / 2 - y**3 / 3)
        # Comparisons with NaN are false, so a shape that is not a number ends the loop.
        accepted = ~(y <= -1) & ~(log_u >= limit)
        drawn = jnp.where(done, drawn, d * (1 + y) ** 3)
        return attempt + 1, drawn, done | accepted

    start = (jnp.int32(0), jnp.zeros_like(shape), jnp.zeros(shape.shape, bool))
    _, drawn, _ = lax.while_loop(lambda carry: ~jnp.all(carry[2]), propose, start)
    power = jnp.where(shape < 1, 1 / shape, 0)
    return drawn * _uniform(boost_key, shape) ** power


def poisson_variables(key: PRNGKeyArray, rate: Vectors) -> Vectors:
    """A draw of Poisson(λ) for every λ ≥ 0 in `rate`, as floats; see above for large rates."""
    uniform_key, normal_key = derived_keys(key, 2)
    large = ~(rate <= _LARGE_RATE)
    searched = jnp.where(large, 0, rate)
    u = _uniform(uniform_key, rate)
    least = jnp.finfo(rate.dtype).eps / 8

    def search(carry: _Inversion) -> _Inversion:
        term = carry.term * searched / (carry.seen + 1)
        return _Inversion(carry.seen + 1, term, carry.total + term, carry.found + below(carry))

    def below(carry: _Inversion) -> Bool[Array, "*k"]:
        # Rounding may keep the total below u for ever: negligible terms after the mode end it.
        return (u > carry.total) & ((carry.term > least) | (carry.seen < searched))

    none = jnp.exp(-searched)
    start = _Inversion(jnp.zeros((), rate.dtype), none, none, jnp.zeros_like(rate))
    counted = lax.while_loop(lambda carry: jnp.any(below(carry)), search, start).found
    z = standard_normal(normal_key, rate.shape, rate.dtype)
    root = jnp.sqrt(rate)
    expanded = rate + root * z + (z**2 - 1) / 6 + (z - z**3) / (72 * root)
    return jnp.where(large, expanded, counted)


class _Inversion(NamedTuple):
    """An inversion after `seen` terms."""

    seen: Scalar
    term: Vectors
    total: Vectors  # P(J ≤ seen)
    found: Vectors


def _uniform(key: PRNGKeyArray, like: Vectors) -> Vectors:
    return uniform_of(random_words(key, like.shape)[..., 0], like.dtype)


def normalised(weights: Float[Array, "*n k"]) -> Float[Array, "*n k"]:
    """Weights divided by their sum over the last axis."""
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


Counts = Float[Any, " ..."]
Step = Float[Any, ""]


class AbstractGammaTransition(eqx.Module):
    """Moves θ > 0, given counts n, such that θ/θ. is drawn from Dirichlet(α + n)."""

    moves_total: ClassVar[bool] = False
    """Whether θ. follows α. + n. , and does not only follow α. ."""

    @abc.abstractmethod
    def draw(
        self, key: PRNGKeyArray, steps: int, shape: tuple[int, ...], dtype: Any
    ) -> PyTree[Array]:
        """The randomness of `steps` moves of θ of this shape; the leading axis is the step."""

    @abc.abstractmethod
    def move(
        self, theta: Vectors, prior: Counts, counts: Counts, step_size: Step, drawn: PyTree[Array]
    ) -> Vectors:
        """Move θ by one step of size ε.

        `prior` is α and `counts` is n̂, the estimate for all rows; both broadcast against `theta`.
        The last axis is the simplex. `drawn` is the randomness of one step.
        """


class ExpandedMean(AbstractGammaTransition):
    """SGRLD in the expanded-mean parametrisation."""

    def draw(
        self, key: PRNGKeyArray, steps: int, shape: tuple[int, ...], dtype: Any
    ) -> Float[Array, "steps ..."]:
        return standard_normal(key, (steps, *shape), dtype)

    def move(
        self, theta: Vectors, prior: Counts, counts: Counts, step_size: Step, drawn: Vectors
    ) -> Vectors:
        counts = jnp.broadcast_to(counts, theta.shape)
        pull = counts - jnp.sum(counts, axis=-1, keepdims=True) * normalised(theta)
        drift = step_size / 2 * (prior - theta + pull)
        moved = jnp.abs(theta + drift + jnp.sqrt(step_size * theta) * drawn)
        return jnp.maximum(moved, jnp.finfo(theta.dtype).tiny)


class CoxIngersollRoss(AbstractGammaTransition):
    """SCIR: the exact transition of the Cox–Ingersoll–Ross process."""

    moves_total = True

    def draw(
        self, key: PRNGKeyArray, steps: int, shape: tuple[int, ...], dtype: Any
    ) -> Key[Array, " steps"]:
        return derived_keys(key, steps)

    def move(
        self, theta: Vectors, prior: Counts, counts: Counts, step_size: Step, drawn: PRNGKeyArray
    ) -> Vectors:
        poisson_key, gamma_key = derived_keys(drawn, 2)
        left = -jnp.expm1(-step_size / 2)  # c, without cancellation at small steps
        hits = poisson_variables(poisson_key, theta * (jnp.exp(-step_size / 2) / left))
        moved = left * gamma_variables(gamma_key, prior + counts + hits)
        return jnp.maximum(moved, jnp.finfo(theta.dtype).tiny)


# Models of counts on simplices: what a sampler needs is expected counts, not gradients.
#
# A model has one or several simplices. Point w on a simplex has the prior Dirichlet(α), and the
# rows determine counts n_i of the categories, given w and the latent variables z_i of row i:
#
#     p(w, z | x) ∝ Π_k w_k^{α_k − 1 + Σ_i n_ik(x_i, z_i)},   n̂ = Σ_{i∈S} w_i E[n_i | w, x_i]
#
# The sum over a batch S of rows with weights w_i estimates Σ_i E n_i without bias if the
# expectation is exact. Patterson and Teh (2013), section 4, and Baker et al. (2018), section 4. A
# position holds θ > 0, and w = θ/θ. along the last axis is what users see.
#
# A model of counts has no gradients of rows. Methods that need them are refused with one message.


_ROWS_PER_STEP = 100


class AbstractCountsModel(AbstractModel):
    """Expected counts of rows, given points on simplices."""

    prior: eqx.AbstractVar[Float[Array, "*k"]]  # α, in the shape of θ; the last axis is a simplex

    totals_vary: ClassVar[bool] = True
    """Whether the total of the counts of a simplex depends on its point."""

    bounded = False

    @abc.abstractmethod
    def expected_counts(
        self, simplex: Float[Array, "*k"], batch: Batch, key: PRNGKeyArray
    ) -> Float[Array, "*k"]:
        """Σ w_i E n_i over the rows of a batch with weights w_i, given w in the shape of α."""

    def theta(self, position: Vector) -> Float[Array, "*k"]:
        """θ in the shape of α."""
        return position.reshape(self.prior.shape)

    def simplex(self, position: Vector) -> Float[Array, "*k"]:
        """W = θ/θ. ."""
        return normalised(self.theta(position))

    def check_gradients(self, n_rows: int, inflation: float) -> None:
        size = min(n_rows, _ROWS_PER_STEP)
        step_size = min(1.0, 4 * inflation * size / max(n_rows - size, 1))
        thin = math.ceil(2 / step_size)
        settings = f"step_size={step_size:.2g}, batch_size={size}) with thin={thin}"
        raise InvalidInput(
            "method",
            "be given for a model of counts, which has no gradients of rows",
            None,
            f"Try tallmc.contrib.simplex.scir({settings}.",
        )

    def prior_potential(self, position: Vector) -> Scalar:
        # θ_k ~ Gamma(α_k, 1), so that w ~ Dirichlet(α).
        theta = self.theta(position)
        return jnp.sum(theta - (self.prior - 1) * jnp.log(theta))

    def row_potentials(self, position: Vector, block: RowBlock) -> PerRow:
        # All gradients and curvatures of the base class come from here.
        raise InvalidInput(
            "method",
            "need no gradients: the rows of a model of counts have none",
            "a method that evaluates gradients or potentials",
            "Use scir(step_size=..., batch_size=...) of tallmc.contrib.simplex.",
        )


def counts_posterior(
    model: AbstractCountsModel,
    rows: AbstractRows,
    name: str,
    dims: tuple[str, ...],
    coords: Mapping[str, tuple[str, ...]],
    description: Mapping[str, str],
) -> ModelPosterior:
    """A posterior whose quantity `name` is w."""
    quantities = ComputedQuantities(
        lambda position: {name: model.simplex(position)}, model.dim, {name: dims}, coords
    )
    return ModelPosterior(model, rows, quantities, None, description)


def checked_prior(parameter: str, prior: ArrayLike, size: int) -> Float[np.ndarray, " k"]:
    """α as a vector of positive numbers, from a number or a vector."""
    values = np.asarray(check_numeric(parameter, prior), np.float64)
    if values.shape not in ((), (size,)) or not (np.isfinite(values) & (values > 0)).all():
        raise InvalidInput(parameter, f"be a positive number, or {size} of them", prior)
    return np.broadcast_to(values, (size,))


def checked_counts(parameter: str, counts: Any, one: str) -> np.ndarray:
    """A matrix of counts from an array or a SciPy sparse matrix, as integers."""
    dense = counts.toarray() if hasattr(counts, "toarray") else counts
    values = np.asarray(check_numeric(parameter, dense))
    if values.ndim != 2 or 0 in values.shape:
        rule = f"be a matrix with one row per {one} and one column per category"
        raise InvalidInput(parameter, rule, f"shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0) & (values % 1 == 0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        found = f"{values[row, column]} in row {row}, column {column}"
        raise InvalidInput(parameter, "be counts: 0, 1, 2, …", found)
    return values.astype(np.int64)


def checked_labels(parameter: str, labels: Any, size: int, dim: str) -> dict[str, tuple[str, ...]]:
    """Names of the entries of a dimension; no names if `labels` is None."""
    if labels is None:
        return {}
    names = tuple(map(str, labels))
    if len(names) != size:
        raise InvalidInput(parameter, f"have one name per column ({size})", len(names))
    return {dim: names}


# Rows of counts with common probabilities: the Dirichlet–multinomial model.
#
#     x_i ~ Multinomial(m_i, w),   w ~ Dirichlet(α):   w | x ~ Dirichlet(α + Σ_i x_i)
#
# The model is conjugate, so its posterior is known. It shows what SGRLD and SCIR do to small
# probabilities (Baker et al., 2018, section 4). The expected counts of a row are its counts.


class DirichletMultinomial(AbstractCountsModel):
    """Rows are vectors of counts of the same categories."""

    prior: Float[Array, " k"]
    init: Vector
    layout: Layout

    totals_vary = False

    def expected_counts(
        self, simplex: Float[Array, " k"], batch: Batch, key: PRNGKeyArray
    ) -> Float[Array, " k"]:
        return batch.weights @ batch.rows.astype(simplex.dtype)


def dirichlet_multinomial(
    counts: Any, prior: ArrayLike = 1.0, labels: Sequence[str] | None = None
) -> ModelPosterior:
    """Probabilities of categories from rows of counts, with a Dirichlet prior.

    **Arguments:**

    - `counts`: a matrix with one row per observation and one column per category, dense or sparse.
    - `prior`: α, a positive number or one per category.
    - `labels`: names of the categories.

    **Returns:** a posterior with the quantity `probabilities`. Its law is Dirichlet(α + column
    sums). Draw from it with `scir` or `sgrld_simplex`.

    >>> import numpy as np, tallmc
    >>> posterior = tallmc.contrib.simplex.dirichlet_multinomial(np.eye(3, dtype=int), prior=0.1)
    >>> method = tallmc.contrib.simplex.scir(step_size=0.5, batch_size=3)
    >>> draws = tallmc.sample(posterior, method, chains=2, n_draws=50, progress=False)
    >>> draws.params["probabilities"].shape
    (2, 50, 3)
    """
    values = checked_counts("counts", counts, "observation")
    n_categories = values.shape[1]
    alpha = jnp.asarray(checked_prior("prior", prior, n_categories), float)
    layout, init = layout_of({"theta": alpha + jnp.mean(alpha)})
    model = DirichletMultinomial(prior=alpha, init=init, layout=layout)
    description = {"family": "Dirichlet–multinomial", "categories": str(n_categories)}
    coords = checked_labels("labels", labels, n_categories, "category")
    rows = ResidentRows(jnp.asarray(values.astype("int32")))
    return counts_posterior(model, rows, "probabilities", ("category",), coords, description)


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


# Perplexity of topics on held-out documents, by document completion.
#
# The words of every held-out document are divided at random into an observed and a scored part.
# The observed words estimate the proportions of topics; the scored words are predicted:
#
#     p(v | d) = (1/S) Σ_s Σ_k E[θ_dk | observed words, φ_s] φ_skv
#     E θ_dk = (a_k + E n_dk)/(a. + n_d)
#     perplexity = exp(−Σ_d Σ_v n_dv^scored log p(v | d) / Σ n^scored)
#
# E n_dk is an average over Gibbs sweeps given the topics φ_s of draw s (Wallach et al., 2009,
# section 5). A uniform guess has the perplexity V, the number of words of the vocabulary. The
# estimate has a noise of its own through the random parts and the Gibbs sweeps.


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


# A step on simplices: rows, expected counts, and a move of θ.
#
# The process of SCIR moves w at the speed 1/θ. ,
#
#     dw = [α + n(w) − (α. + n.(w)) w] dt/θ. + noise of variance 2(diag(w) − wwᵀ) dt/θ. ,
#
# which leaves the law of w invariant if θ. is independent of w. Given counts, θ. ~ Gamma(α. + n.)
# is. Where the total n. depends on w, as for topics, θ. follows it, and the law of w would be
# tilted by about one count in n. . There every step draws θ. anew, from Gamma(α. + n̄) with the mean
# total n̄ of the steps so far. SGRLD has no such problem: its θ. follows α. alone.


class SimplexKernel(AbstractKernel):
    """Estimates counts from the rows of a step and moves θ."""

    counts_model: AbstractCountsModel
    selection: AbstractStaticSelection
    transition: AbstractGammaTransition
    schedule: AbstractSchedule
    rest: Vector

    @property
    def model(self) -> AbstractCountsModel:
        return self.counts_model

    @property
    def rows_per_step(self) -> int:
        return self.selection.size

    @property
    def rows_ahead(self) -> int:
        return self.selection.size

    @property
    def _redraws_total(self) -> bool:
        return self.transition.moves_total and self.counts_model.totals_vary

    def start_memory(
        self, positions: Float[Array, "chains d"], rows: AbstractRows
    ) -> Float[Array, "chains ..."] | None:
        """n̄ of every simplex, where θ. is drawn anew."""
        if not self._redraws_total:
            return None
        shape = self.counts_model.prior.shape[:-1]
        return on_device(np.zeros((len(positions), *shape)), positions.dtype)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        rows_key, move_key, *step_keys = derived_keys(key, 4)
        shape, dtype = self.counts_model.prior.shape, self.counts_model.dtype
        moves = self.transition.draw(move_key, steps, shape, dtype)
        of_steps = (derived_keys(step_key, steps) for step_key in step_keys)
        return Drawn(self.selection.draw(rows_key, steps), (moves, *of_steps))

    def gather(self, drawn: Drawn, rows: AbstractRows) -> Gathered:
        return Gathered(self.selection.gather(drawn.selection, rows), drawn.noise)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        model, (move, counts_key, total_key) = self.counts_model, gathered.noise
        step_size = self.schedule(step).astype(state.position.dtype)
        simplex, theta = model.simplex(state.position), model.theta(state.position)
        counts = model.expected_counts(simplex, gathered.selection, counts_key)
        totals = state.carried
        if self._redraws_total:
            totals += (jnp.sum(counts, axis=-1) - totals) / (step + 1)
            shape = jnp.sum(jnp.broadcast_to(model.prior, theta.shape), axis=-1) + totals
            drawn = gamma_variables(total_key, shape)
            theta = simplex * drawn[..., None]
        theta = self.transition.move(theta, model.prior, counts, step_size, move)
        position = theta.reshape(state.position.shape)
        new = ChainState(PositionState(position), totals)
        return KernelStep(new, {}, outcome_of(position))


_MODELS_CURE = "See tallmc.contrib.simplex.dirichlet_multinomial and tallmc.contrib.simplex.lda."
_TRANSITIONS: dict[str, type[AbstractGammaTransition]] = {
    "cir": CoxIngersollRoss,
    "expanded mean": ExpandedMean,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimplexSampler(AbstractMethod):
    """SCIR or SGRLD for models of counts.

    Every step draws n rows, estimates the counts of all N rows with the weights of the subsample,
    and moves θ, whose normalised rows are the points (see the top of this file):

        n̂ = Σ_{i∈S} w_i E[n_i | w],   "cir": θ' = c·Gamma(α + n̂ + J, 1),   J ~ Poisson(θe^{−ε/2}/c)
        c = 1 − e^{−ε/2},   "expanded mean": θ' = |θ + (ε/2)(α − θ + n̂ − n̂.θ/θ.) + √(εθ) η|
    """

    paper_by_setting: ClassVar = {
        "transition='cir'": "Baker, Fearnhead, Fox and Nemeth (2018)",
        "transition='expanded mean'": "Patterson and Teh (2013)",
    }
    bias = (
        "Subsampling inflates variances of θ by Var(n̂) tanh(ε/4), about (N/n)(ε/4) relative to "
        "their size for rows of one count each. SCIR has no error of discretisation; that of SGRLD "
        "is large for components close to zero."
    )
    cost = "A step reads n rows and draws one or two random variables per component."
    unseen_by_pairs = "the bias of expected counts from a few Gibbs sweeps"

    uses_gradients = False

    step_size: Any
    batch_size: int
    transition: str = "cir"
    subsample: SubsampleChoice = dataclasses.field(default_factory=lambda: Uniform(replace=False))

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        check_int("batch_size", self.batch_size, 1)
        if self.transition not in _TRANSITIONS:
            rule = f"be one of {', '.join(_TRANSITIONS)}"
            raise InvalidInput("transition", rule, self.transition)
        if not isinstance(self.subsample, SubsampleChoice):
            raise InvalidInput("subsample", "be a subsample of tallmc.subsample", self.subsample)

    @property
    def axes(self) -> dict[str, str]:
        return labels(self.transition, "expected counts", type(self.subsample).__name__, "fixed")

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Prepare the subsample."""
        check_posterior(posterior)
        model = posterior.model
        if not isinstance(model, AbstractCountsModel):
            rule = "be a model of counts on simplices for this method"
            raise InvalidInput("posterior", rule, type(model).__name__, _MODELS_CURE)
        check_row_access(self, posterior)
        check_int("batch_size", self.batch_size, 1, posterior.n_rows)
        selection = self.subsample.prepare(SubsampleContext(posterior), Fixed(self.batch_size))
        if not isinstance(selection, AbstractStaticSelection):
            rule = "choose rows independently of the position"
            cure = "Use Uniform() or Preferential(weights)."
            raise InvalidInput("subsample", rule, type(self.subsample).__name__, cure)
        kernel = SimplexKernel(
            counts_model=model,
            selection=selection,
            transition=_TRANSITIONS[self.transition](),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=posterior.init,
        )
        return PreparedMethod(BoundKernel(kernel, posterior), None, 0)


@named("Patterson and Teh (2013)", example={"batch_size": 2})
def sgrld_simplex(
    step_size: StepSize, batch_size: int, subsample: SubsampleChoice | None = None
) -> SimplexSampler:
    """SGRLD on simplices, in the expanded-mean parametrisation: biased near zero.

    For models of counts: `dirichlet_multinomial` and `lda`. `subsample` decides which rows a step
    sees: `Uniform(...)`, or `Preferential(weights)` with a number per row, such as the lengths of
    documents; by default distinct rows at random.
    """
    chosen = Uniform(replace=False) if subsample is None else subsample
    return SimplexSampler(
        step_size=step_size, batch_size=batch_size, transition="expanded mean", subsample=chosen
    )


@named("Baker, Fearnhead, Fox and Nemeth (2018)", example={"batch_size": 2})
def scir(
    step_size: StepSize, batch_size: int, subsample: SubsampleChoice | None = None
) -> SimplexSampler:
    """Stochastic Cox–Ingersoll–Ross process on simplices: no error of discretisation.

    The models and settings are those of `sgrld_simplex`.
    """
    return dataclasses.replace(sgrld_simplex(step_size, batch_size, subsample), transition="cir")
