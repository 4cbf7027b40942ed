"""The paths of a pair of chains, and the bias that pairs measure beside the exact one."""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tallmc
from tallmc.methods.pairs import PairRun

N_PAIRS = 256  # reduced: 16
N_DRAWS = 1_500  # reduced: 100

rng = np.random.default_rng(0)
x = rng.normal(1.0, 1.0, size=(100, 1))
posterior = tallmc.models.gaussian(x, np.eye(1), np.zeros(1), 1e6 * np.eye(1))
precision = 100 + 1e-6
noise = 100**2 / 10 * x.var()  # the variance of the gradient estimate from 10 rows


def exact_variance(step):
    """The stationary variance of SGLD at ε = step/precision, in posterior variances."""
    return (1 + step / precision * noise / 4) / (1 - step / 4)


def pairs_at(step, draws, burn_in):
    """Pairs of chains at ε = step/precision and at half of it."""
    kernel = (
        tallmc.methods.sgld(step_size=step / precision, batch_size=10).prepare(posterior).kernel
    )
    start = jnp.full((N_PAIRS, 1), x.mean(), jnp.float32)
    return PairRun(kernel, start, burn_in=burn_in, n_draws=draws)


fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
example = pairs_at(0.1, draws=100, burn_in=0).positions()
for name, positions in zip(("ε", "ε/2"), example, strict=True):
    left.plot((positions[0, :, 0] - x.mean()) * np.sqrt(precision), label=f"step size {name}")
left.set(xlabel="step of the coarse chain", ylabel="position, posterior sds from the mean")
left.set_title("one pair, ε = 0.1/λ", fontsize=10)
left.legend(fontsize=8)

steps = np.array([0.03, 0.1, 0.3, 0.8])
found = [pairs_at(step, N_DRAWS, burn_in=int(10 / step)).bias() for step in steps]
bias, error = np.array([[of.sd[0], of.sd_error[0]] for of in found]).T
grid = np.geomspace(0.015, 1, 100)
whole = np.sqrt(exact_variance(grid)) - 1
expected = exact_variance(grid) / exact_variance(grid / 2) - 1
right.plot(grid, 100 * whole, "k-", label="exact bias at ε")
right.plot(grid, 100 * expected, "--", color="tab:orange", label="exact mean of the check")
right.errorbar(steps, 100 * bias, 200 * error, fmt="o", markersize=4, capsize=3, label="measured")
right.set(xscale="log", yscale="log", xlabel="step size, ε λ", ylabel="bias of the sd, %")
right.set_title(f"{N_PAIRS} pairs, two standard errors", fontsize=10)
right.legend(fontsize=8)
z = (bias - exact_variance(steps) / exact_variance(steps / 2) + 1) / error
exact = np.sqrt(exact_variance(steps)) - 1
for line in zip(steps, exact, bias, error, z, strict=True):
    print("step {:.2f}: exact {:.4f}, measured {:.4f} ± {:.4f}, z {:.1f}".format(*line))
fig.savefig("pair_check.png", dpi=110)
