"""Bayesian neural networks: densities, gradients, predictions and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as stats
from scipy.signal import correlate
from scipy.special import log_softmax, softmax

import tallmc
from kept_programs import run_once
from tallmc.models import ConvolutionalLayer, DenseLayer, MaxPoolLayer, neural_network

RNG = np.random.default_rng(0)
X, CLASSES = RNG.normal(size=(7, 5)), np.array([0, 2, 1, 1, 0, 2, 2])
LAYERS = [DenseLayer(4, "tanh")]


def moved(posterior, seed=1):
    rng = np.random.default_rng(seed)
    return np.asarray(posterior.init) + 0.3 * rng.normal(size=posterior.dim)


def log_density(posterior, position):
    return -float(posterior.potential(jnp.asarray(position)))


def normals(weights, variance):
    return sum(stats.norm.logpdf(leaf, 0, np.sqrt(variance)).sum() for leaf in weights)


def two_layers(weights, x, hidden=np.tanh):
    inner = hidden(x @ weights["layer0"]["weight"] + weights["layer0"]["bias"])
    return inner @ weights["output"]["weight"] + weights["output"]["bias"]


def test_density_is_that_of_scipy():
    posterior = neural_network(LAYERS, X, CLASSES, prior_variance=2.0)
    position = moved(posterior)
    weights = jax.tree.map(np.asarray, posterior.layout.unravel(position))
    expected = log_softmax(two_layers(weights, X), axis=1)[np.arange(7), CLASSES].sum()
    expected += normals(jax.tree.leaves(weights), 2.0)
    np.testing.assert_allclose(log_density(posterior, position), expected, rtol=1e-10)


def test_density_of_a_gaussian_response_is_that_of_scipy():
    y = RNG.normal(size=7)
    posterior = neural_network(LAYERS, X, y, response="gaussian", noise_variance=0.3)
    position = moved(posterior)
    weights = jax.tree.map(np.asarray, posterior.layout.unravel(position))
    expected = stats.norm.logpdf(y, two_layers(weights, X)[:, 0], np.sqrt(0.3)).sum()
    expected += normals(jax.tree.leaves(weights), 1.0)
    np.testing.assert_allclose(log_density(posterior, position), expected, rtol=1e-10)


def test_precisions_have_gamma_priors_and_the_jacobian_of_their_logarithm():
    posterior = neural_network(LAYERS, X, CLASSES, prior_variance=2.0, precisions=(3.0, 5.0))
    position = moved(posterior)
    free = jax.tree.map(np.asarray, posterior.layout.unravel(position))
    weights = free["network"]
    expected = log_softmax(two_layers(weights, X), axis=1)[np.arange(7), CLASSES].sum()
    for layer in weights:
        for part in ("weight", "bias"):
            log_precision = float(free["precision"][layer][part])
            precision = np.exp(log_precision)
            expected += normals([weights[layer][part]], 2.0 / precision) + log_precision
            expected += stats.gamma.logpdf(precision, 3.0, scale=1 / 5.0)
    np.testing.assert_allclose(log_density(posterior, position), expected, rtol=1e-10)
    shown = posterior.quantities.of(position[None, None])["precision.output.bias"]
    np.testing.assert_allclose(shown, np.exp(free["precision"]["output"]["bias"]), rtol=1e-12)


@pytest.mark.parametrize("precisions", [False, True])
def test_gradient_is_the_difference_quotient(precisions):
    posterior = neural_network(LAYERS, X, CLASSES, precisions=precisions)
    position, direction = moved(posterior), moved(posterior, seed=2)
    step = 1e-5
    quotient = (
        log_density(posterior, position - step * direction)
        - log_density(posterior, position + step * direction)
    ) / (2 * step)
    slope = float(posterior.gradient(jnp.asarray(position)) @ direction)
    np.testing.assert_allclose(slope, quotient, rtol=1e-7)


def test_convolution_and_pooling_are_those_of_scipy():
    layers = [ConvolutionalLayer(2, 3, "relu"), MaxPoolLayer(2), DenseLayer(3, "sigmoid")]
    images = RNG.normal(size=(4, 7, 8))
    posterior = neural_network(layers, images, [0, 1, 1, 0])
    position = moved(posterior)
    weights = jax.tree.map(np.asarray, posterior.layout.unravel(position))
    kernels = weights["layer0"]["weight"].reshape(3, 3, 2)
    encoded = posterior.predictive.encode(images)
    found = np.asarray(run_once(posterior.predictive.mean)(jnp.asarray(position), encoded))
    for image, probabilities in zip(images, found, strict=True):
        maps = [
            np.maximum(correlate(image, kernels[..., k], "valid") + weights["layer0"]["bias"][k], 0)
            for k in range(2)
        ]  # 5 × 6
        pooled = np.stack([m[:4].reshape(2, 2, 3, 2).max(axis=(1, 3)) for m in maps], axis=-1)
        inner = pooled.reshape(-1) @ weights["layer2"]["weight"] + weights["layer2"]["bias"]
        z = 1 / (1 + np.exp(-inner)) @ weights["output"]["weight"] + weights["output"]["bias"]
        np.testing.assert_allclose(probabilities, softmax(z), rtol=1e-10)


def test_channels_of_images_are_summed_over():
    images = RNG.normal(size=(3, 4, 4, 2))
    layer = ConvolutionalLayer(1, 2)
    weights, shape = layer.start(np.random.default_rng(0), (4, 4, 2), float)
    kernel = np.asarray(weights["weight"]).reshape(2, 2, 2)
    expected = correlate(images[1], kernel, "valid")
    assert shape == (3, 3, 1)
    np.testing.assert_allclose(layer(weights, jnp.asarray(images))[1], expected, rtol=1e-10)


def test_batched_gradients_are_sums_of_row_gradients():
    posterior = neural_network(LAYERS, X, CLASSES)
    position, model = jnp.asarray(moved(posterior)), posterior.model

    @run_once
    def both(position):
        of_rows = model.row_gradients(position, posterior.data).sum(axis=0)
        return of_rows, posterior.gradient(position) - model.prior_gradient(position)

    rows, total = both(position)
    np.testing.assert_allclose(rows, total, rtol=1e-10)


def test_hidden_units_differ_at_the_start():
    posterior = neural_network(LAYERS, X, CLASSES)
    weight = posterior.layout.unravel(posterior.init)["layer0"]["weight"]
    assert len(np.unique(np.asarray(weight))) == weight.size
    other = neural_network(LAYERS, X, CLASSES, seed=1)
    assert not np.allclose(other.init, posterior.init)


def test_a_function_of_any_pytree_is_a_network():
    weights = [np.ones((5, 3)), {"shift": np.zeros(3)}]
    posterior = neural_network(lambda w, x: x @ w[0] + w[1]["shift"], X, CLASSES, init=weights)
    expected = log_softmax(X @ weights[0], axis=1)[np.arange(7), CLASSES].sum()
    expected += normals([weights[0], weights[1]["shift"]], 1.0)
    np.testing.assert_allclose(log_density(posterior, posterior.init), expected, rtol=1e-10)


@pytest.mark.slow
def test_sampling_a_linear_network_gives_the_conjugate_posterior():
    """Without hidden layers a Gaussian network is linear regression with an intercept."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 2))
    y = x @ [1.0, -0.5] + 0.3 + 0.5 * rng.normal(size=60)
    posterior = neural_network([], x, y, response="gaussian", noise_variance=0.25)
    draws = tallmc.sample(
        posterior, tallmc.methods.mala(0.004), chains=4, n_draws=2000, burn_in=200, seed=1
    )
    design = np.column_stack([np.ones(60), x])  # bias first: leaves are sorted by name
    covariance = np.linalg.inv(design.T @ design / 0.25 + np.eye(3))
    mean = covariance @ design.T @ y / 0.25
    new = rng.normal(size=(3, 2))
    prediction = draws.predict(new)
    at_new = np.column_stack([np.ones(3), new])
    sd = np.sqrt(np.einsum("ij,jk,ik->i", at_new, covariance, at_new))
    # 8,000 draws are worth at least 400 independent ones: an error of 0.05 sd, times 4.6.
    np.testing.assert_allclose((prediction.mean - at_new @ mean) / sd, 0, atol=0.23)
    np.testing.assert_allclose(prediction.sd / sd, 1, atol=0.17)


@pytest.mark.slow
def test_predictions_of_classes_are_probabilities():
    posterior = neural_network(LAYERS, X, CLASSES)
    draws = tallmc.sample(posterior, tallmc.methods.sgld(0.01, 3), chains=2, n_draws=20, burn_in=0)
    prediction = draws.predict(X[:4])
    assert prediction.mean.shape == (4, 3)
    np.testing.assert_allclose(prediction.mean.sum(axis=1), 1, rtol=1e-6)
    simulated = draws.posterior_predictive(X[:4])
    assert set(np.unique(simulated)) <= {0.0, 1.0, 2.0}
    log_likelihood = draws.log_likelihood((X, CLASSES))
    first = posterior.predictive.mean(jnp.asarray(draws.positions[0, 0]), posterior.data)
    np.testing.assert_allclose(
        log_likelihood[0, 0], np.log(np.asarray(first)[np.arange(7), CLASSES]), rtol=1e-6
    )


BAD = {
    "classes not integers": ({"y": CLASSES + 0.5}, "class"),
    "fewer classes than seen": ({"classes": 2}, "class"),
    "y too short": ({"y": CLASSES[:-1]}, "one entry per row"),
    "x a vector": ({"x": X[:, 0]}, "axis"),
    "x not finite": ({"x": np.where(X > 2, np.nan, np.nan)}, "finite"),
    "no layer": ({"layers": ["dense"]}, "layers"),
    "a convolution of vectors": ({"layers": [ConvolutionalLayer(2, 3)]}, "images"),
    "unknown response": ({"response": "poisson"}, "response"),
    "negative variance": ({"prior_variance": -1.0}, "prior_variance"),
    "precisions not a pair": ({"precisions": 3.0}, "pair"),
    "a function without weights": ({"layers": lambda w, x: x}, "init"),
    "too few outputs": ({"layers": lambda w, x: x @ w, "init": np.ones((5, 2))}, "return an array"),
    "weights that do not fit": ({"init": {"layer0": np.ones(2)}}, "init"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    change, message = BAD[case]
    with pytest.raises(tallmc.InvalidInput, match=message):
        neural_network(**{"layers": LAYERS, "x": X, "y": CLASSES, **change})


@pytest.mark.parametrize(
    "make",
    [
        lambda: DenseLayer(0),
        lambda: DenseLayer(3, "swish"),
        lambda: ConvolutionalLayer(3, 0),
        lambda: MaxPoolLayer(0),
    ],
)
def test_bad_layers_are_refused(make):
    with pytest.raises(tallmc.InvalidInput):
        make()


def test_new_rows_must_fit():
    predictive = neural_network(LAYERS, X, CLASSES).predictive
    with pytest.raises(tallmc.InvalidInput, match="shape"):
        predictive.encode(X[:, :4])
    with pytest.raises(tallmc.InvalidInput, match="class"):
        predictive.encode((X, CLASSES + 1), response=True)
    with pytest.raises(tallmc.InvalidInput, match="pair"):
        predictive.encode(X, response=True)
