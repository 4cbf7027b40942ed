"""Default calls on real data agree with full-data NUTS, within the targets and reported errors."""

import numpy as np
import pytest

import tallmc
from benchmarks import problems
from problems import slow_after

EFFECTIVE = 4000
SMALL = {"pima": lambda: problems.small("pima"), "parkinsons": lambda: problems.small("parkinsons")}
LARGE = {
    "covertype": problems.covertype,
    "review10": lambda: problems.review(10),
    "review50": lambda: problems.review(50),
    "review100": lambda: problems.review(100),
}


def check_errors(draws, mean, sd):
    found, report = draws.positions[draws.ok].astype(float), draws.report
    mean_error = (np.abs(found.mean(axis=(0, 1)) - mean) / sd).max()
    ratio = found.std(axis=(0, 1)) / sd
    assert report.ess >= EFFECTIVE and report.trusted, str(report)
    assert mean_error <= 0.1 and ratio.min() >= 0.95 and ratio.max() <= 1.05
    assert report.mean_error >= mean_error / 2
    assert report.sd_error >= np.abs(ratio - 1).max() / 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_after(1, [0, 1]))
@pytest.mark.parametrize("name", slow_after(1, SMALL))
def test_small_data(shared, name, seed):
    reference = np.load(shared / "reference" / f"{name}.npz", allow_pickle=False)
    check_errors(
        tallmc.sample(SMALL[name](), ess=EFFECTIVE, seed=seed), reference["mean"], reference["sd"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", LARGE)
def test_tall_data(shared, name, seed):
    reference = np.load(shared / "reference" / f"{name}.npz", allow_pickle=False)
    check_errors(
        tallmc.sample(LARGE[name](), ess=EFFECTIVE, seed=seed), reference["mean"], reference["sd"]
    )


HARD = {
    "Student-t": problems.student_t,
    "softmax": lambda: problems.softmax(20_000),
    "class 5, 1.6 % of the rows": lambda: problems.covertype(5, 60_000),
    "class 4, 0.47 % of the rows": lambda: problems.covertype(4, 60_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
def test_hard_cases_are_right_or_refused(shared, name):
    """The reference is full-data NUTS, run here. The limits include its Monte-Carlo error."""
    posterior = HARD[name]()
    anchor = tallmc.anchor.find_anchor(posterior)
    draws = tallmc.sample(posterior, anchor=anchor, ess=EFFECTIVE)
    if not draws.report.trusted:
        assert draws.report.doubts
        return
    referee = tallmc.reference.nuts(posterior, chains=2, n_draws=400, warmup=200, anchor=anchor)
    table = referee.summary()
    sd, found = table["sd"].to_numpy(), draws.positions[draws.ok].astype(float)
    mean_error = np.abs(found.mean(axis=(0, 1)) - table["mean"].to_numpy()) / sd
    ratio_error = np.abs(found.std(axis=(0, 1)) / sd - 1)
    assert (mean_error - 4.6 * table["mcse_mean"].to_numpy() / sd).max() <= 0.1
    assert (ratio_error - 4.6 * table["mcse_sd"].to_numpy() / sd).max() <= 0.05
