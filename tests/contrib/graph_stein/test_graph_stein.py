"""The graph Stein discrepancy: its programs, its graph, and what it tells about draws."""

import itertools

import numpy as np
import pytest

import tallmc
from tallmc.contrib.graph_stein import graph_stein_discrepancy, linear_programs, spanner


def normal(n: int, dim: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dim))


@pytest.mark.smoke
def test_one_draw_has_the_largest_values():
    """γ is the sign of the score, and the divergence is 1 per coordinate."""
    gradients = np.array([[0.3, -2.0]])
    assert graph_stein_discrepancy(np.zeros((1, 2)), gradients) == pytest.approx(2.3 + 2)


def test_two_draws_have_the_maximum_over_the_corners_of_their_constraints():
    """All corners of the polytope in four unknowns, by enumeration."""
    x, scores, mass = np.array([[0.0], [0.7]]), np.array([[0.4], [-1.1]]), np.array([0.3, 0.7])
    r = 0.7
    # Unknowns γ_0, γ_1, Γ_0, Γ_1; x_0 − x_1 = −r.
    lines = [*np.eye(4), [1, -1, 0, 0], [0, 0, 1, -1], [1, -1, r, 0], [1, -1, 0, r]]
    limits = [1, 1, 1, 1, r, r, r**2 / 2, r**2 / 2]
    a, b = np.vstack([lines, -np.array(lines)]), np.array(2 * limits)
    goal = np.array([mass[0] * scores[0, 0], mass[1] * scores[1, 0], *mass])
    best = -np.inf
    for chosen in itertools.combinations(range(len(a)), 4):
        active = a[list(chosen)]
        if abs(np.linalg.det(active)) > 1e-9:
            corner = np.linalg.solve(active, b[list(chosen)])
            if (a @ corner <= b + 1e-9).all():
                best = max(best, goal @ corner)
    assert graph_stein_discrepancy(x, -scores, mass) == pytest.approx(best, abs=1e-9)


def test_no_smooth_function_beats_it():
    """g_j = sin(wᵀx + c) with |w_k| ≤ 1 is bounded by 1 with its derivatives, in any dimension."""
    rng, x = np.random.default_rng(1), 1.3 * normal(40, 2)
    found = graph_stein_discrepancy(x, x)
    best = 0.0
    for _ in range(300):
        total = 0.0
        for j in range(2):
            w, c = rng.uniform(-1, 1, 2), rng.uniform(0, 2 * np.pi)
            phase = x @ w + c
            total += np.mean(-x[:, j] * np.sin(phase) + w[j] * np.cos(phase))
        best = max(best, total)
    assert 0.2 < best <= found


def test_the_spanner_connects_all_pairs_within_twice_their_distance():
    x = normal(40, 2)
    edges = spanner(x)
    ways = np.full((40, 40), np.inf)
    ways[edges[:, 0], edges[:, 1]] = np.abs(x[edges[:, 0]] - x[edges[:, 1]]).sum(axis=1)
    ways = np.minimum(ways, ways.T)
    np.fill_diagonal(ways, 0)
    for middle in range(40):  # Floyd and Warshall
        ways = np.minimum(ways, ways[:, middle, None] + ways[middle])
    assert (ways <= 2 * np.abs(x[:, None] - x).sum(axis=2) + 1e-12).all()
    assert len(edges) < 40 * 39 / 4


def test_fewer_edges_allow_more_but_not_much_more():
    x, mass = 1.3 * normal(25, 2), np.full(25, 1 / 25)
    complete = np.column_stack(np.triu_indices(25, 1))
    few, all_pairs = (linear_programs(x, -x, mass, edges) for edges in (spanner(x), complete))
    assert all_pairs <= few <= 2 * all_pairs


def test_it_falls_for_exact_draws_and_stays_for_others():
    exact, wide = ([graph_stein_discrepancy(s * normal(n), s * normal(n)) for n in (50, 400)]
                   for s in (1.0, 1.5))  # fmt: skip
    assert exact[1] < 0.6 * exact[0]
    assert wide[1] > 0.8 * wide[0] > exact[0]


def test_repeated_draws_are_weights():
    x, counts = normal(6), np.array([1, 3, 1, 2, 1, 1])
    repeated = np.repeat(x, counts, axis=0)
    whole = graph_stein_discrepancy(repeated, repeated)
    assert whole == pytest.approx(graph_stein_discrepancy(x, x, counts), abs=1e-9)


def test_bad_input_is_answered():
    with pytest.raises(tallmc.InvalidInput, match="positions must be a finite matrix"):
        graph_stein_discrepancy(np.zeros((1001, 1)), np.zeros((1001, 1)))
    with pytest.raises(tallmc.InvalidInput, match="gradients must be finite"):
        graph_stein_discrepancy(np.zeros((3, 1)), np.zeros((3, 2)))
    with pytest.raises(tallmc.InvalidInput, match="weights must be one number per draw"):
        graph_stein_discrepancy(np.zeros((3, 1)), np.zeros((3, 1)), np.array([1.0, -1.0, 1.0]))
