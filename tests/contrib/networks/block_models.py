"""Networks for tests: simulated from the model, and the exact posterior of a tiny one."""

import itertools

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import betaln, gammaln


def simulated(n_nodes, n_communities, *, concentration, strength, background, seed):
    """Links and true memberships of a network from the model, all communities equally strong."""
    rng = np.random.default_rng(seed)
    memberships = rng.dirichlet(np.full(n_communities, concentration), n_nodes)
    chance = background + (strength - background) * memberships @ memberships.T
    return np.argwhere(np.triu(rng.random((n_nodes, n_nodes)) < chance, 1)), memberships


def matched(found, truth):
    """`found` with its communities in the order in which they agree best with `truth`."""
    _, order = linear_sum_assignment(-(truth.T @ found))
    return found[:, order]


def summaries(memberships, strengths):
    """Numbers that do not depend on the order of the communities; the last axes are the model's."""
    n_nodes = memberships.shape[-2]
    together = np.einsum("...ak,...bk->...ab", memberships, memberships)
    upper = [together[..., a, b] for a in range(n_nodes) for b in range(a, n_nodes)]
    moments = [strengths.sum(-1), (strengths**2).sum(-1), strengths.prod(-1)]
    return np.stack([*upper, *moments], axis=-1)


def exact_summaries(links, background, alpha, eta):
    """The posterior means of `summaries` for two communities, by enumeration of all z.

    Given z, memberships are Dirichlet and strengths are Beta: means are in closed form.
    """
    n_nodes = len(links)
    pairs = list(itertools.combinations(range(n_nodes), 2))
    weights, values = [], []
    for z in itertools.product((0, 1), repeat=2 * len(pairs)):
        of_nodes, of_strengths, log_p = np.zeros((n_nodes, 2)), np.zeros((2, 2)), 0.0
        for (a, b), z_a, z_b in zip(pairs, z[::2], z[1::2], strict=True):
            of_nodes[a, z_a] += 1
            of_nodes[b, z_b] += 1
            y = links[a, b]
            if z_a == z_b:
                of_strengths[z_a, y] += 1
            else:
                log_p += np.log(background if y else 1 - background)
        shape, beta = alpha + of_nodes, np.asarray(eta)[::-1] + of_strengths
        log_p += gammaln(shape).sum() + betaln(beta[:, 0], beta[:, 1]).sum()
        mean = shape / shape.sum(axis=1, keepdims=True)
        together = mean @ mean.T
        square = shape * (shape + 1) / (shape.sum(1) * (shape.sum(1) + 1))[:, None]
        np.fill_diagonal(together, square.sum(axis=1))
        strength = beta[:, 1] / beta.sum(axis=1)
        second = strength * (beta[:, 1] + 1) / (beta.sum(axis=1) + 1)
        upper = [together[a, b] for a in range(n_nodes) for b in range(a, n_nodes)]
        weights.append(log_p)
        values.append([*upper, strength.sum(), second.sum(), strength.prod()])
    weights = np.exp(np.array(weights) - max(weights))
    return weights @ np.array(values) / weights.sum()
