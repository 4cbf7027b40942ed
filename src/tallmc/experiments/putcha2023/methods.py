"""The paper's methods, and ours beside them, on one posterior with one step size and size: as run, and as meant."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from ... import diagnose, methods
from ..._anchor import Anchor
from ..._draws import Draws
from ..._method import Method
from ..._posterior import AbstractPosterior
from ...gradient import ControlVariate
from ...subsample import Adaptive, Measured, Preferential
from ...subsample.size import noise_bound
from ..chains import Trace, adam_anchors, kernel_of, kernels, quietly_sampled, trace
from ..results import Setting
from .discrepancy import Path, as_meant_path, as_run_path, prefixes

STEPS = 10_000  # of every chain whose KSD is shown, as run and as meant
_PROBES = 20


def fixed(step_size: float, size: int, floor: float = 0.05) -> dict[str, Method]:
    return {
        "SGLD": methods.sgld(step_size, size),
        "SGLD-PS": methods.sgld_ps(step_size, size, floor),
        "SGLD-CV": methods.sgld_cv(step_size, size),
        "SGLD-CV-PS": methods.sgld_cv_ps(step_size, size, floor),
    }


def ours(posterior: AbstractPosterior, anchor: Anchor, step_size: float, size: int) -> dict[str, Method]:
    """Order-2 control variates: at the paper's size, and with as few rows as keep the noise that SGLD-CV-PS has at that size."""
    parts: dict[str, Any] = {"gradient": ControlVariate(order=2), "subsample": Preferential("residual"), "step_size": step_size}
    kernel = kernel_of(methods.sgld_cv_ps(step_size, size), posterior, anchor)
    noise = np.mean([diagnose.pseudo_variance(kernel, at) for at in laplace_draws(anchor, _PROBES)])
    return {
        "SGLD-CV2-PS": Method(**parts, size=size),
        "SGLD-CV2-PS, measured": Method(**parts, size=Measured(2, noise=float(noise) / posterior.dim)),
    }


def laplace_draws(anchor: Anchor, count: int) -> Float[np.ndarray, "count d"]:
    assert anchor.factor is not None, "anchors of these experiments have a Hessian"
    normal = np.random.default_rng(0).standard_normal((count, len(anchor.position)))
    return np.asarray(anchor.position) + normal @ np.asarray(anchor.factor).T


@dataclasses.dataclass(frozen=True)
class AsRun:
    """The authors' runs: SGLD burns in from 0, the others start at the Adam mode of their chain, nothing has a floor.

    All methods have the same modes and the same injected noise, so that they are compared chain by chain.
    """

    setting: Setting
    posterior: AbstractPosterior
    step_size: float
    size: int
    chains: int
    seed: int
    anchors: list[Anchor]

    @classmethod
    def prepared(cls, setting: Setting, posterior: AbstractPosterior, *, step_size: float, size: int, chains: int) -> AsRun:
        seed, zero, share = 11, np.zeros((chains, posterior.dim)), setting.part("modes by Adam")
        anchors = adam_anchors(posterior, zero, steps=STEPS, size=size, seed=seed, share=share)
        return cls(setting, posterior, step_size, size, chains, seed, anchors)

    def fixed(self, label: str) -> Trace:
        method, share = fixed(self.step_size, self.size, floor=0.0)[label], self.setting.part(label)
        if label == "SGLD":
            alike = [kernel_of(method, self.posterior)] * self.chains
            zero = np.zeros((self.chains, self.posterior.dim))
            return trace(alike, zero, STEPS, burn_in=STEPS, seed=self.seed, share=share)
        return trace(kernels(method, self.posterior, self.anchors), self._modes, STEPS, seed=self.seed, share=share)

    def adaptive(self, label: str, pilot: Trace) -> Trace:
        """n = ⌈c‖θ − θ̂‖²⌉ with c = n₀ over the largest 95 % quantile of ‖θ − θ̂‖² in a chain of fixed size.

        That is all that is left of eq. 19 in the code, where Lipschitz constants and weights cancel.
        """
        moves = np.concatenate([np.zeros_like(pilot.positions[:, :1]), pilot.positions - self._modes[:, None]], axis=1)
        rows_per_squared_distance = self.size / np.quantile(np.sum(moves**2, axis=2), 0.95, axis=1).max()
        method = fixed(self.step_size, self.size, floor=0.0)[label]
        adaptive = []
        for anchor, kernel in zip(self.anchors, kernels(method, self.posterior, self.anchors), strict=True):
            bound = noise_bound(kernel.selection.law, self.posterior)  # type: ignore[attr-defined]
            size = Adaptive(noise_threshold=bound / rows_per_squared_distance)
            adaptive.append(kernel_of(dataclasses.replace(method, size=size), self.posterior, anchor))
        return trace(adaptive, self._modes, STEPS, seed=self.seed, share=self.setting.part(f"A{label}"))

    def path(self, label: str, trace: Trace) -> Path:
        return as_run_path(trace, prefixes(STEPS), self.setting.part(f"KSD of {label}"))

    @property
    def _modes(self) -> Float[np.ndarray, "chains d"]:
        return np.array([anchor.position for anchor in self.anchors])


def burnt_in(
    setting: Setting,
    posterior: AbstractPosterior,
    starts: Float[np.ndarray, "chains d"],
    *,
    per_cent: int,
    passes: int,
    step_size: float,
    seed: int,
) -> dict[str, Trace]:
    """The authors' runs of figure 4: SGLD, and SGLD-PS whose burn-in is Adam, each for as many passes as its burn-in took."""
    size, steps = posterior.n_rows * per_cent // 100, passes * 100 // per_cent
    share = setting.part(f"SGLD, {per_cent} %")
    alike = [kernel_of(methods.sgld(step_size, size), posterior)] * len(starts)
    plain = trace(alike, starts, steps, burn_in=steps, seed=seed, share=share)
    share = setting.part(f"SGLD-PS, {per_cent} %")
    anchors = adam_anchors(posterior, starts, steps=steps, size=size, seed=seed, share=share)
    weighted = kernels(methods.sgld_ps(step_size, size, floor=0.0), posterior, anchors)
    modes = np.array([anchor.position for anchor in anchors])
    return {"SGLD": plain, "SGLD-PS": trace(weighted, modes, steps, seed=seed, share=share)}


def paths_as_meant(
    setting: Setting,
    posterior: AbstractPosterior,
    anchor: Anchor,
    of: dict[str, Method],
    *,
    chains: int,
    thin: int,
    steps: int = STEPS,
) -> tuple[dict[str, Path], dict[str, Draws]]:
    """The right KSD of every method, all from the one converged mode on, and their draws."""
    paths, kept = {}, {}
    for label, method in of.items():
        kept[label] = quietly_sampled(
            posterior, method, anchor, chains=chains, draws=steps // thin, thin=thin, seed=11, share=setting.part(label)
        )
        every = max(1, min(200, steps // 10) // thin)
        lengths = prefixes(steps // thin, every) + 1
        paths[label] = as_meant_path(posterior, kept[label], lengths, setting.part(f"KSD of {label}"))
    return paths, kept
