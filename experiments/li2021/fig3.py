"""Figure 3 and Table 2: test errors of Bayesian neural networks on MNIST, five methods, 200 epochs.

The 100 independent samples of the paper are the ends of 100 chains. A repetition is 100 chains of
the perceptron, or ten of the convolutional network, and its test error is that of the mean of their
predictions. Two methods are compared by groups of ten chains, of which there are more.

As stated, the printed steps are those of V = Σ V_i − log prior. As it works, they are steps of V/N
at temperature 1/N, except for SGLD (`networks.py`). The full runs need an accelerator.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from ..data import mnist
from ..predictive_runs import PredictiveRun, error_per_cent, pooled
from ..results import (
    Claim,
    Curve,
    ExperimentSetting,
    Panel,
    Result,
    ResultTable,
    close,
    lower,
    mean_sd,
    over_chains,
)
from .networks import EPOCHS, METHODS, N_TEST, N_TRAIN, NETWORKS, Potential, finite_share, run

# The paper has ten repetitions of 100 chains for both.
REPETITIONS = {"MLP": (2, 100), "CNN": (10, 10)}
"""Repetitions of the full run, and chains in each of them."""
GROUP = 10
"""Chains of a group when two methods are compared."""
_STATED_EPOCHS = 20
_QUICK_ROWS = {"MLP": (12_000, 2_000), "CNN": (400, 100)}
_QUICK_METHODS = {"MLP": METHODS, "CNN": ("SGHMC", "EWSG")}


def as_stated(network: str, setting: ExperimentSetting) -> Result:
    return _result(network, setting, "sum", setting.pick(_STATED_EPOCHS, 1))


def as_works(network: str, setting: ExperimentSetting) -> Result:
    return _result(network, setting, "mean", setting.pick(EPOCHS, 2 if network == "MLP" else 1))


def _result(network: str, setting: ExperimentSetting, potential: Potential, epochs: int) -> Result:
    n_train, n_test = _QUICK_ROWS[network] if setting.quick else (N_TRAIN, N_TEST)
    # As stated the chains do not learn, which one group of them shows.
    full = REPETITIONS[network] if potential == "mean" else (1, GROUP)
    repetitions, pool = (1, 2) if setting.quick else full
    found = run(
        network,
        setting.folder,
        chains=repetitions * pool,
        pool=pool,
        epochs=epochs,
        potential=potential,
        names=_QUICK_METHODS[network] if setting.quick else METHODS,
        n_train=n_train,
        n_test=n_test,
        share=setting.part(f"{network}, {epochs} epochs"),
    )
    labels = mnist(setting.folder).y_held_out[:n_test]
    result = result_of(network, found, labels, reduced=setting.quick or epochs < EPOCHS)
    return result._replace(
        claims=[*result.claims, *_own_claims(network, setting, potential, found)]
    )


def _own_claims(
    network: str,
    setting: ExperimentSetting,
    potential: Potential,
    found: dict[str, PredictiveRun],
) -> list[Claim]:
    """What must hold for our reading of the steps to be right."""
    if potential == "sum" and not setting.quick:
        error = float(found["SGHMC"].current["error"][:, -1].mean())
        statement = "with steps of V, SGHMC does not learn"
        return [Claim(statement, "error above 50 %", f"{error:.1f} %", error > 50)]
    if potential == "mean" and setting.quick and network == "MLP":
        error = float(found["pSGLD"].current["error"][:, -1].mean())
        return [
            Claim("pSGLD learns in two passes", "error below 50 %", f"{error:.1f} %", error < 50)
        ]
    return []


def errors_of_groups(
    run: PredictiveRun, labels: Int[np.ndarray, " n"], group: int
) -> Float[np.ndarray, " groups"]:
    """Test errors in per cent of the pooled predictions of each `group` chains at the end."""
    return error_per_cent(labels)(pooled(run.predictions, group))


def result_of(
    network: str,
    found: dict[str, PredictiveRun],
    labels: Int[np.ndarray, " n"],
    *,
    reduced: bool,
) -> Result:
    """Learning curves, Table 2 and claims. Reduced runs are not compared with published errors."""
    panel = Panel(
        network, f"{network} on MNIST", "passes through the data", "test error in %", True
    )
    curves, rows = [], []
    for name, of_method in found.items():
        errors = of_method.current["error"]
        curves.append(over_chains(network, name, np.arange(1, errors.shape[1] + 1), errors))
        mean, sd = NETWORKS[network].errors[name]
        if not reduced:
            end = np.array([float(errors.shape[1])])
            curves.append(Curve(network, name, end, np.array([mean]), kind="published marks"))
        groups = errors_of_groups(of_method, labels, 2 if reduced else GROUP)
        rows.append(
            [
                name,
                f"{mean:.3f} ± {sd:.3f}",
                mean_sd(errors[:, -1], 3),
                mean_sd(groups, 3),
                mean_sd(errors_of_groups(of_method, labels, 1), 3),
                f"{of_method.current['log-loss'][:, -1].mean():.4f}",
                f"{of_method.seconds:.0f}",
            ]
        )
    finite = min(finite_share(of_method) for of_method in found.values())
    claims = [Claim("all chains stay finite", "100 %", f"{100 * finite:.0f} %", finite == 1)]
    if not reduced:
        claims += _published_claims(network, found, labels)
    columns = ("method", "published", "found", "groups of ten", "one chain", "log-loss", "seconds")
    pools, epochs = errors.shape
    chains = len(of_method.predictions)
    title = (
        f"test error in % after {epochs} epochs, {network}: {pools} repetitions of "
        f"{chains // pools} chains, mean ± sd"
    )
    return Result([panel], curves, claims, [ResultTable(title, columns, rows)])


def _published_claims(
    network: str, found: dict[str, PredictiveRun], labels: Int[np.ndarray, " n"]
) -> list[Claim]:
    agreements = [
        close(
            f"{network}: test error of {name}",
            float(found[name].current["error"][:, -1].mean()),
            mean,
            2 * sd,
            required=False,
        )
        for name, (mean, sd) in NETWORKS[network].errors.items()
    ]
    groups = {name: errors_of_groups(run, labels, GROUP) for name, run in found.items()}
    orders = [
        lower(
            f"{network}: EWSG has a lower test error than {name}, groups of ten chains",
            groups["EWSG"],
            groups[name],
        )
        for name in METHODS
        if name != "EWSG"
    ]
    return [*agreements, *orders]
