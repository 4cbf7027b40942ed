"""Figure 3 and Table 2: test errors of Bayesian neural networks on MNIST, five methods, 200 epochs.

As stated, the printed steps are those of V = Σ V_i − log prior. As it works, they are steps of V/N
at temperature 1/N, except for SGLD (`networks.py`). The full runs need an accelerator: on two cores
the perceptron takes hours and the convolutional network days.
"""

from __future__ import annotations

import numpy as np

from ..predictive_runs import PredictiveRun
from ..results import (
    Claim,
    ExperimentSetting,
    Panel,
    Result,
    ResultTable,
    close,
    lower,
    over_chains,
)
from .networks import EPOCHS, METHODS, N_TEST, N_TRAIN, NETWORKS, Potential, finite_share, run

_STATED_EPOCHS = 20
_QUICK_ROWS = {"MLP": (12_000, 2_000), "CNN": (400, 100)}
_QUICK_METHODS = {"MLP": METHODS, "CNN": ("SGHMC", "EWSG")}


def as_stated(network: str, setting: ExperimentSetting) -> Result:
    return _result(network, setting, "sum", setting.pick(_STATED_EPOCHS, 1))


def as_works(network: str, setting: ExperimentSetting) -> Result:
    return _result(network, setting, "mean", setting.pick(EPOCHS, 2 if network == "MLP" else 1))


def _result(network: str, setting: ExperimentSetting, potential: Potential, epochs: int) -> Result:
    n_train, n_test = _QUICK_ROWS[network] if setting.quick else (N_TRAIN, N_TEST)
    found = run(
        network,
        setting.folder,
        repetitions=setting.pick(10, 1),
        epochs=epochs,
        potential=potential,
        names=_QUICK_METHODS[network] if setting.quick else METHODS,
        n_train=n_train,
        n_test=n_test,
        share=setting.part(f"{network}, {epochs} epochs"),
    )
    result = result_of(network, found, reduced=setting.quick or epochs < EPOCHS)
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
        error = float(found["pSGLD"].averaged["error"][:, -1].mean())
        return [
            Claim("pSGLD learns in two passes", "error below 50 %", f"{error:.1f} %", error < 50)
        ]
    return []


def result_of(network: str, found: dict[str, PredictiveRun], *, reduced: bool) -> Result:
    """Learning curves, Table 2 and claims. Reduced runs are not compared with published errors."""
    panel = Panel(
        network, f"{network} on MNIST", "passes through the data", "test error in %", True
    )
    curves, rows = [], []
    for name, of_method in found.items():
        errors = of_method.averaged["error"]
        curves.append(over_chains(network, name, np.arange(1, errors.shape[1] + 1), errors))
        mean, sd = NETWORKS[network].errors[name]
        spread = f" ± {errors[:, -1].std(ddof=1):.3f}" if len(errors) > 1 else ""
        rows.append(
            [
                name,
                f"{mean:.3f} ± {sd:.3f}",
                f"{errors[:, -1].mean():.3f}{spread}",
                f"{of_method.current['error'][:, -1].mean():.3f}",
                f"{of_method.averaged['log-loss'][:, -1].mean():.4f}",
                f"{of_method.seconds:.0f}",
            ]
        )
    finite = min(finite_share(of_method) for of_method in found.values())
    claims = [Claim("all chains stay finite", "100 %", f"{100 * finite:.0f} %", finite == 1)]
    if not reduced:
        claims += _published_claims(network, found)
    columns = ("method", "published", "found", "last sample", "log-loss", "seconds")
    epochs = len(curves[0].x)
    table = ResultTable(f"test error in % after {epochs} epochs, {network}", columns, rows)
    return Result([panel], curves, claims, [table])


def _published_claims(network: str, found: dict[str, PredictiveRun]) -> list[Claim]:
    last = {name: of_method.averaged["error"][:, -1] for name, of_method in found.items()}
    agreements = [
        close(
            f"{network}: test error of {name}",
            float(last[name].mean()),
            mean,
            2 * float(np.hypot(sd, last[name].std(ddof=1))),
            required=False,
        )
        for name, (mean, sd) in NETWORKS[network].errors.items()
    ]
    orders = [
        lower(f"{network}: EWSG has a lower test error than {name}", last["EWSG"], last[name])
        for name in METHODS
        if name != "EWSG"
    ]
    return [*agreements, *orders]
