"""Scores on new rows, autocorrelations and errors of averages, against independent calculations."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import tallmc
from tallmc import diagnose

RANDOM = np.random.default_rng(7)
X, X_NEW = RANDOM.normal(size=(30, 3)), RANDOM.normal(size=(57, 3))
POSITIONS = RANDOM.normal(size=(2, 4, 3))
FLAT = POSITIONS.reshape(-1, 3)


@pytest.fixture(scope="module")
def logistic():
    return tallmc.models.logistic_regression(X, X[:, 0] > 0, prior_variance=1.0)


@pytest.fixture(scope="module")
def probabilities():
    """P(y = 1) of the new rows, averaged over the draws."""
    return special.expit(X_NEW @ FLAT.T).mean(axis=1)


@pytest.fixture(scope="module")
def y_new():
    return (RANDOM.random(57) < 0.5).astype(int)


class TestScores:
    def test_the_most_probable_class_is_that_of_the_averaged_probability(
        self, logistic, probabilities, y_new
    ):
        expected = ((probabilities > 0.5) == y_new).mean()
        votes = ((special.expit(X_NEW @ FLAT.T) > 0.5).mean(axis=1) > 0.5) == y_new
        assert votes.mean() != expected  # a majority of draws is another rule
        assert diagnose.accuracy(POSITIONS, logistic, (X_NEW, y_new)) == pytest.approx(expected)

    @pytest.mark.slow
    def test_classes_are_compared_with_their_numbers(self):
        y = np.arange(30) % 3
        posterior = tallmc.models.softmax_regression(X, y, prior_variance=1.0)
        position = np.random.default_rng(0).normal(size=posterior.dim)
        y_new = np.arange(57) % 3
        prediction = posterior.predictive.mean(
            jnp.asarray(position), posterior.predictive.encode((X_NEW, y_new))
        )
        expected = (np.asarray(prediction).argmax(axis=1) == y_new).mean()
        assert diagnose.accuracy([position], posterior, (X_NEW, y_new)) == pytest.approx(expected)

    def test_errors_are_in_the_units_of_the_response(self):
        posterior = tallmc.models.linear_regression(
            X, X.sum(axis=1), prior_variance=1.0, noise_variance=0.5
        )
        y = X_NEW.sum(axis=1)
        expected = np.sqrt(np.mean((y - X_NEW @ FLAT.mean(axis=0)) ** 2))
        assert diagnose.rmse(POSITIONS, posterior, (X_NEW, y)) == pytest.approx(expected, rel=1e-12)

    def test_the_log_density_is_that_of_the_mixture_with_its_constants(self):
        y, y_new = RANDOM.poisson(2.0, 30), RANDOM.poisson(2.0, 57)
        posterior = tallmc.models.poisson_regression(X, y, prior_variance=1.0)
        each = stats.poisson.logpmf(y_new[:, None], np.exp(X_NEW @ FLAT.T))
        expected = (special.logsumexp(each, axis=1) - np.log(8)).mean()
        found = diagnose.log_predictive_density(POSITIONS, posterior, (X_NEW, y_new))
        assert found == pytest.approx(expected, rel=1e-10)

    def test_a_posterior_of_densities_is_told_its_responses(self):
        posterior = tallmc.Posterior(
            lambda theta, row: -jnp.square(row["y"] - theta) / 2,
            lambda theta: -(theta**2) / 2,
            data={"y": jnp.arange(5.0)},
            init=0.0,
            mean=lambda theta, row: theta,
        )
        rows = {"y": np.array([1.0, 4.0])}
        found = diagnose.rmse([[2.0], [3.0]], posterior, rows, response=rows["y"])
        assert found == pytest.approx(1.5)
        with pytest.raises(tallmc.InvalidInput, match="response="):
            diagnose.rmse([[2.0]], posterior, rows)

    def test_a_score_that_the_response_does_not_have_is_refused(self, logistic):
        linear = tallmc.models.linear_regression(
            X, X.sum(axis=1), prior_variance=1.0, noise_variance=0.5
        )
        rows = X_NEW, X_NEW.sum(axis=1)
        for score in (diagnose.accuracy, diagnose.calibration):
            with pytest.raises(tallmc.InvalidInput, match="with classes, or of 0 and 1"):
                score(POSITIONS, linear, rows)
        with pytest.raises(tallmc.InvalidInput, match="pair"):
            diagnose.accuracy(POSITIONS, logistic, X_NEW)
        with pytest.raises(tallmc.InvalidInput, match="3 coordinates"):
            diagnose.accuracy(POSITIONS[..., :2], logistic, rows)


class TestCalibration:
    def test_bins_are_sorted_by_probability_and_equally_large(self, logistic, probabilities, y_new):
        found = diagnose.calibration(POSITIONS, logistic, (X_NEW, y_new), bins=4)
        order = np.argsort(probabilities)
        assert found.counts.tolist() == [15, 14, 14, 14]
        np.testing.assert_allclose(found.predicted[0], probabilities[order[:15]].mean())
        np.testing.assert_allclose(found.observed[-1], y_new[order[-14:]].mean())

    def test_draws_that_generated_the_responses_are_calibrated_and_others_are_not(self):
        random = np.random.default_rng(1)
        x, theta = random.normal(size=(20_000, 3)), np.array([1.0, -2.0, 0.5])
        y = random.random(20_000) < special.expit(x @ theta)
        posterior = tallmc.models.logistic_regression(x, y, prior_variance=1.0)
        # Ten bins of 2,000 rows: the error of a share is at most 0.011.
        assert diagnose.calibration([theta], posterior, (x, y)).error < 0.015
        assert diagnose.calibration([3 * theta], posterior, (x, y)).error > 0.05


class TestAutocorrelation:
    def test_a_chain_with_memory_has_its_geometric_autocorrelation(self):
        random, rho = np.random.default_rng(2), 0.8
        values = np.zeros((4, 50_000))
        noise = random.normal(size=values.shape)
        for t in range(1, values.shape[1]):
            values[:, t] = rho * values[:, t - 1] + noise[:, t]
        found = diagnose.autocorrelation(values, lags=10)
        # Bartlett: the variance of an estimate is at most (1 + ρ²)/(1 − ρ²)/n.
        error = np.sqrt((1 + rho**2) / (1 - rho**2) / values.shape[1])
        np.testing.assert_allclose(found, rho ** np.arange(11)[None].repeat(4, 0), atol=4.6 * error)

    def test_it_is_the_sum_of_lagged_products(self):
        values = np.random.default_rng(3).normal(size=(2, 37))
        centred = values - values.mean(axis=1, keepdims=True)
        for lag, found in enumerate(diagnose.autocorrelation(values, lags=36).T):
            products = (centred[:, lag:] * centred[:, : 37 - lag]).sum(axis=1)
            np.testing.assert_allclose(found, products / (centred**2).sum(axis=1), atol=1e-12)

    def test_a_chain_that_does_not_move_has_none(self):
        assert np.isnan(diagnose.autocorrelation(np.ones((1, 10)), lags=2)).all()

    def test_too_many_lags_are_refused(self):
        with pytest.raises(tallmc.InvalidInput, match="lags"):
            diagnose.autocorrelation(np.ones((1, 10)), lags=10)


class TestAverages:
    def test_bias_and_error_are_those_of_running_averages(self):
        values = np.random.default_rng(4).normal(size=(5, 12))
        found = diagnose.average_errors(values, 0.7, at=[3, 12])
        averages = np.array([values[:, :length].mean(axis=1) for length in (3, 12)])
        np.testing.assert_allclose(found.bias, averages.mean(axis=1) - 0.7)
        np.testing.assert_allclose(found.mean_square, ((averages - 0.7) ** 2).mean(axis=1))
        np.testing.assert_allclose(found.bias_error, averages.std(axis=1, ddof=1) / np.sqrt(5))

    @pytest.mark.slow
    def test_the_bias_of_langevin_steps_grows_with_the_step_size(self):
        x = np.array([-1.0, 1.0])
        posterior = tallmc.models.gaussian(x[:, None], [[1.0]], [0.0], [[1.0]])
        precision = 3.0  # of two rows and of the prior, one each
        for step_size in (0.1, 0.4):
            draws = tallmc.sample(
                posterior,
                tallmc.methods.ula(step_size),
                chains=400,
                n_draws=500,
                burn_in=50,
                thin=1,
            )
            squares = draws.positions[:, :, 0] ** 2
            found = diagnose.average_errors(squares, 1 / precision, at=[500])
            exact = 1 / precision / (1 - step_size * precision / 4) - 1 / precision
            assert abs(found.bias[0] - exact) < 4.6 * found.bias_error[0]
            assert exact > 4.6 * found.bias_error[0]  # the bias is seen, not noise

    def test_lengths_beyond_the_chain_are_refused(self):
        with pytest.raises(tallmc.InvalidInput, match="lengths from 1 to 10"):
            diagnose.average_errors(np.ones((2, 10)), 0.0, at=[11])
