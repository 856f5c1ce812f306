"""The Gaussian process agrees with the textbook formulas and with finite differences."""

import numpy as np
import pytest
from scipy.optimize import check_grad

from mltune.cost.gaussian_process import JITTER, GaussianProcess, Hyperparameters, _loss

RNG = np.random.default_rng(7)
X = RNG.random((30, 4))
Y = np.sin(5 * X[:, 0]) + X[:, 1] ** 2 + RNG.normal(0, 0.05, 30)
NEW = RNG.random((11, 4))
DEVIATION = 0.5
SOME = Hyperparameters(np.array([0.4, 0.8, 2.0, 3.0]), 1.3, 0.2)


def matern(A, B, given):
    """Matérn 5/2, point by point (Rasmussen and Williams, 2006, equation 4.17)."""
    distance = np.sqrt((((A[:, None, :] - B[None, :, :]) / given.scales) ** 2).sum(axis=2))
    root = np.sqrt(5.0) * distance
    return given.amplitude**2 * (1 + root + 5 * distance**2 / 3) * np.exp(-root)


def textbook(X, y, new, given):
    """Return means and variances by dense inversion (Rasmussen and Williams, equations 2.23 and 2.24)."""
    middle, deviation = y.mean(), y.std()
    inverse = np.linalg.inv(matern(X, X, given) + (given.noise**2 + JITTER) * np.eye(len(X)))
    shared = matern(new, X, given)
    mean = middle + deviation * (shared @ inverse @ ((y - middle) / deviation))
    return mean, deviation**2 * (given.amplitude**2 - np.einsum("ij,jk,ik->i", shared, inverse, shared))


def test_covariance_is_that_of_matern():
    np.testing.assert_allclose(SOME.covariance(X, NEW), matern(X, NEW, SOME), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_that_of_finite_differences(seed):
    centre = Hyperparameters.usual(4)._logs()
    logs = centre + np.random.default_rng(seed).normal(0, 0.5, len(centre))
    z = (Y - Y.mean()) / Y.std()
    known = X, z, centre, DEVIATION
    error = check_grad(lambda at: _loss(at, *known)[0], lambda at: _loss(at, *known)[1], logs)
    assert error < 1e-4 * max(np.linalg.norm(_loss(logs, *known)[1]), 1.0)


def test_the_loss_is_the_negative_log_posterior():
    """Equality holds up to a constant that depends on neither the data nor the hyperparameters."""
    from scipy.stats import multivariate_normal

    centre, z = Hyperparameters.usual(4)._logs(), (Y - Y.mean()) / Y.std()

    def expected(given):
        density = multivariate_normal(cov=matern(X, X, given) + (given.noise**2 + JITTER) * np.eye(30)).logpdf(z)
        return -density - 15 * np.log(2 * np.pi) + 0.5 * np.square((given._logs() - centre) / DEVIATION).sum()

    for given in (SOME, Hyperparameters.usual(4)):
        assert _loss(given._logs(), X, z, centre, DEVIATION)[0] == pytest.approx(expected(given), rel=1e-8)


def test_posterior_is_that_of_the_textbook():
    process = GaussianProcess(SOME).fit(X, Y)
    mean, variance = textbook(X, Y, NEW, SOME)
    posterior = process.posterior(NEW)
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-9)
    np.testing.assert_allclose(posterior.spread**2, variance, atol=1e-9)
    np.testing.assert_allclose(process.mean(NEW), mean, atol=1e-9)


def test_expecting_points_is_conditioning_on_their_means():
    """Means stay, and variances shrink as if the point had been measured with its mean as the target."""
    posterior = GaussianProcess(SOME).fit(X, Y).posterior(NEW)
    means, points = posterior.mean.copy(), X
    for position in (3, 8, 3):
        posterior.expect(position)
        points = np.concatenate([points, NEW[[position]]])
        inverse = np.linalg.inv(matern(points, points, SOME) + (SOME.noise**2 + JITTER) * np.eye(len(points)))
        shared = matern(NEW, points, SOME)
        variance = Y.var() * (SOME.amplitude**2 - np.einsum("ij,jk,ik->i", shared, inverse, shared))
        np.testing.assert_allclose(posterior.spread**2, variance, atol=1e-6)
        np.testing.assert_array_equal(posterior.mean, means)


def test_some_of_the_points_are_known_as_among_all():
    whole = GaussianProcess(SOME).fit(X, Y).posterior(NEW)
    whole.expect(2)
    some = whole.among(np.array([0, 2, 7]))
    some.expect(1)
    whole.expect(2)
    np.testing.assert_array_equal(some.mean, whole.mean[[0, 2, 7]])
    np.testing.assert_allclose(some.spread, whole.spread[[0, 2, 7]], atol=1e-12)


def test_hyperparameters_tell_which_dimensions_matter():
    rng = np.random.default_rng(1)
    points = rng.random((80, 5))
    targets = np.sin(6 * points[:, 1]) + 2 * np.square(points[:, 3] - 0.4) + rng.normal(0, 0.02, 80)
    scales = Hyperparameters.most_likely(points, targets).scales
    assert max(scales[[1, 3]]) < min(scales[[0, 2, 4]])


def test_length_scales_stay_near_a_prior_that_is_sure_of_them():
    prior = Hyperparameters(np.array([4.0, 0.2, 1.0, 1.0]), 1.0, 0.1)
    found = [Hyperparameters.most_likely(X[:8], Y[:8], prior, deviation) for deviation in (1.0, 0.5, 0.01)]
    away = [np.abs(np.log(one.scales / prior.scales)).max() for one in found]
    assert away[0] > away[1] > away[2]
    assert away[2] < 0.01


@pytest.mark.parametrize("targets", [np.zeros(6), np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1e6])])
def test_equal_points_and_equal_targets_are_handled(targets):
    points = np.zeros((6, 2))
    process = GaussianProcess(Hyperparameters.most_likely(points, targets)).fit(points, targets)
    posterior = process.posterior(np.array([[0.0, 0.0], [1.0, 1.0]]))
    assert np.isfinite(posterior.mean).all()
    assert (posterior.spread > 0).all()
