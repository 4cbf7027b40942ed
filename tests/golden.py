"""Draws of every named method, part, model and of the default, with fixed seeds on small data.

`golden.json` holds a hash of each run. A change that must not change any draw leaves it as it is:

    python tests/golden.py                 compare; names the runs whose bits differ
    python tests/golden.py --write         write the file again, after a change that must
    python tests/golden.py --write NAME    write one run again, on the processor of the others

Bits depend on the processor, so the file names the one on which it was written.
"""

import functools
import hashlib
import json
import platform
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).parent / "contrib" / "series"))

from series import autoregression, hidden_markov_series

import tallmc
from problems import DYNAMICS, GRADIENTS, SIZES, SUBSAMPLES, linear, logistic, logistic_by_autodiff
from regressions import REGRESSIONS, built
from tallmc.contrib.groups import Local, LocalPosterior, NormalGroups
from tallmc.gradient import Full, Simple
from tallmc.subsample import AllRows, Uniform

for topic in tallmc.contrib.__all__:  # registers its methods
    getattr(tallmc.contrib, topic)

FILE = Path(__file__).with_name("golden.json")
STEP = 0.01
EDGES = np.array([[0, 1], [0, 2], [1, 2], [2, 3], [3, 4], [3, 5]])


def counts() -> Any:
    return tallmc.contrib.simplex.dirichlet_multinomial(
        np.random.default_rng(0).integers(0, 4, (12, 3))
    )


def communities() -> Any:
    return tallmc.contrib.networks.mixed_membership(EDGES, n_communities=3, background=0.07)


def groups() -> Any:
    """Intercepts that differ between groups, with unknown sds."""
    rng = np.random.default_rng(3)
    of_rows = np.arange(40) % 8
    x = rng.normal(size=(40, 2))
    y = x @ [1.0, -1.0] + rng.normal(size=8)[of_rows] + rng.normal(size=40)

    def log_likelihood(shared: Any, local: Any, row: Any) -> Any:
        predictor = jnp.dot(row["x"], shared["beta"]) + jnp.dot(jnp.ones(1), local["effects"])
        sd = shared["noise_sd"]
        return -0.5 * (((row["y"] - predictor) / sd) ** 2 + jnp.log(2 * np.pi * sd**2))

    def log_prior(shared: Any) -> Any:
        scales = (jnp.sum((shared[name] / 5.0) ** 2) for name in ("effect_sd", "noise_sd"))
        means = (shared[name] for name in ("beta", "effect_mean"))
        total = -0.5 * sum(scales, jnp.zeros(()))
        return total - 0.5 * sum(jnp.sum(of**2 / 100 + jnp.log(2 * np.pi * 100)) for of in means)

    init = {
        "beta": np.array([1.2185810804367065, -1.0824764966964722]),
        "effect_mean": np.array([0.38114821910858154]),
        "effect_sd": np.exp([-0.5290246605873108]),
        "noise_sd": np.exp(-0.04846314713358879),
    }
    means = [0.84710926, 0.40533066, 0.7230483, 1.1151686]
    means += [0.32661265, 0.18471111, -0.12837455, -0.42442012]
    law = NormalGroups(lambda shared: (shared["effect_mean"], shared["effect_sd"]))
    data, start = jax.tree.map(np.float32, ({"x": x, "y": y}, init))
    effects = Local(of_rows, np.float32(means)[:, None], law)
    positive = {"effect_sd": "positive", "noise_sd": "positive"}
    return LocalPosterior(
        log_likelihood, log_prior, data, start, {"effects": effects}, transforms=positive
    )


SPECIAL = {
    "scir": counts,
    "sgrld_simplex": counts,
    "mmsb_scir": communities,
    "mmsb_sgrld": communities,
    "local_sgld": groups,
}


def named(name: str) -> tuple[Any, Any]:
    entry = tallmc.methods.METHODS[name]
    posterior = SPECIAL.get(name, lambda: logistic(60, 3))()
    return posterior, entry.make(STEP, **entry.example)


def with_dynamics(name: str) -> tuple[Any, Any]:
    exact = DYNAMICS[name].exact_only
    parts = (
        {"gradient": Full(), "subsample": AllRows()}
        if exact
        else {"gradient": Simple(), "subsample": Uniform(), "batch_size": 3}
    )
    return linear(), tallmc.Method(dynamics=DYNAMICS[name], step_size=STEP, **parts)


def with_subsample(name: str) -> tuple[Any, Any]:
    size = None if name == "all-rows" else 3
    return logistic(), tallmc.Method(subsample=SUBSAMPLES[name], batch_size=size, step_size=STEP)


def with_gradient(name: str) -> tuple[Any, Any]:
    full = name == "full"
    subsample, size = (AllRows(), None) if full else (Uniform(), 3)
    return logistic_by_autodiff(20), tallmc.Method(
        gradient=GRADIENTS[name], subsample=subsample, batch_size=size, step_size=STEP
    )


def with_size(name: str) -> tuple[Any, Any]:
    gradient = GRADIENTS["control-variate"]
    return logistic(20), tallmc.Method(gradient=gradient, batch_size=SIZES[name], step_size=STEP)


def of_model(name: str) -> tuple[Any, Any]:
    method = tallmc.Method(
        gradient=GRADIENTS["second-order"],
        subsample=SUBSAMPLES["residual-weights"],
        batch_size=5,
        step_size=STEP,
    )
    return built(name, np.float32), method


def network() -> Any:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 2)).astype(np.float32)
    layers = [tallmc.models.DenseLayer(4), tallmc.models.DenseLayer(3)]
    return tallmc.models.neural_network(layers, x, rng.integers(0, 3, 30))


OTHER: dict[str, Callable[[], tuple[Any, Any]]] = {
    "hidden_markov": lambda: (
        tallmc.contrib.series.hidden_markov(hidden_markov_series(300)[0], 2, window=10, buffer=5),
        tallmc.methods.sgld(1e-4, 3),  # with STEP a rounding grows to 1 in 83 steps
    ),
    "state_space": lambda: (
        tallmc.contrib.series.state_space(autoregression(300), window=10, buffer=5),
        tallmc.methods.sgld(STEP, 3),
    ),
    "neural_network": lambda: (network(), tallmc.methods.sgld(1e-4, 3)),
    "corrected": lambda: (
        linear(),
        tallmc.Method(
            correction=tallmc.correction.NoiseCorrection("dense"), batch_size=6, step_size=STEP
        ),
    ),
    "dense": lambda: (
        logistic(60, 3),
        tallmc.Method(geometry=tallmc.geometry.Dense(), batch_size=5, step_size=STEP),
    ),
    "diagonal": lambda: (
        logistic(60, 3),
        tallmc.Method(geometry=tallmc.geometry.Diagonal(), batch_size=5, step_size=STEP),
    ),
    "default-small": lambda: (logistic(60, 3), None),
    "default-logistic": lambda: (logistic(20_000, 4), None),
    "default-linear": lambda: (linear(500, 3), None),
    "default-densities": lambda: (logistic_by_autodiff(300), None),
}

MAKERS: dict[str, tuple[Callable[[str], tuple[Any, Any]], Any]] = {
    "method": (named, tallmc.methods.METHODS),
    "dynamics": (with_dynamics, DYNAMICS),
    "subsample": (with_subsample, SUBSAMPLES),
    "gradient": (with_gradient, GRADIENTS),
    "size": (with_size, SIZES),
    "model": (of_model, REGRESSIONS),
}
CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    f"{kind} {name}": functools.partial(make, name)
    for kind, (make, names) in MAKERS.items()
    for name in names
} | OTHER


def digest(case: str) -> dict[str, Any]:
    """The hash of a run's draws, and its last position."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior, method = CASES[case]()
        arguments: dict[str, Any] = {} if method is None else {"burn_in": 3, "thin": 2}
        draws = tallmc.sample(
            posterior, method, chains=2, n_draws=40, seed=5, progress=False, **arguments
        )
    positions = np.ascontiguousarray(draws.positions)
    return {
        "sha256": hashlib.sha256(positions.tobytes()).hexdigest()[:32],
        "last": [float(f"{value:.5g}") for value in positions[0, -1].ravel()[:4]],
    }


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    known = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return platform.machine() + " " + hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]


def main() -> int:
    chosen = [word for word in sys.argv[1:] if not word.startswith("--")] or list(CASES)
    found: dict[str, Any] = {}
    for case in chosen:
        try:
            found[case] = digest(case)
        except Exception as error:
            found[case] = {"error": f"{type(error).__name__}: {str(error)[:80]}"}
    if "--write" in sys.argv:
        if chosen != list(CASES):
            kept = json.loads(FILE.read_text())
            if kept["processor"] != processor():
                sys.exit("the other runs are of another processor: write all of them")
            found = kept["runs"] | found
        content = {"processor": processor(), "runs": found}
        FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    wanted = json.loads(FILE.read_text())
    if wanted["processor"] != processor():
        print("golden.json was written on another processor; bits may differ")
    wrong = [case for case in chosen if found[case] != wanted["runs"].get(case)]
    for case in wrong:
        print(f"{case}: {found[case]} instead of {wanted['runs'].get(case)}")
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} runs are bitwise equal")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
