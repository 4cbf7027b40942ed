"""The methods of the paper and of this package, at one step size and size: as run and as meant."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from tallmc import diagnose, methods
from tallmc._anchor.anchor import Anchor
from tallmc.gradient import ControlVariate
from tallmc.methods.method import Method
from tallmc.models.posterior import AbstractPosterior
from tallmc.results.draws import Draws
from tallmc.subsample import BoundedNoise, Preferential, TargetNoise
from tallmc.subsample.bounded_noise import noise_bound

from ..chains import Trace, adam_anchors, kernel_of, kernels, quietly_sampled, stream_of, trace
from ..results import ExperimentSetting
from .discrepancy import KsdPath, as_meant_path, as_run_path, prefixes

STEPS = 10_000  # per chain in figures 2, 3 and 5, as run and as meant
_NOISE_PROBES = 20


def fixed(step_size: float, size: int, floor: float = 0.05) -> dict[str, Method]:
    return {
        "SGLD": methods.sgld(step_size, size),
        "SGLD-PS": methods.sgld_ps(step_size, size, floor),
        "SGLD-CV": methods.sgld_cv(step_size, size),
        "SGLD-CV-PS": methods.sgld_cv_ps(step_size, size, floor),
    }


def ours(
    posterior: AbstractPosterior, anchor: Anchor, step_size: float, size: int
) -> dict[str, Method]:
    """Return methods with order-2 control variates.

    One uses the paper's size. The other uses the fewest rows that keep the noise at the level that
    SGLD-CV-PS has at the paper's size.
    """
    parts: dict[str, Any] = {
        "gradient": ControlVariate(order=2),
        "subsample": Preferential("residual"),
        "step_size": step_size,
    }
    kernel = kernel_of(methods.sgld_cv_ps(step_size, size), posterior, anchor)
    noise = np.mean(
        [diagnose.pseudo_variance(kernel, at) for at in laplace_draws(anchor, _NOISE_PROBES)]
    )
    return {
        "SGLD-CV2-PS": Method(**parts, batch_size=size),
        "SGLD-CV2-PS, measured": Method(
            **parts, batch_size=TargetNoise(2, noise=float(noise) / posterior.dim)
        ),
    }


def laplace_draws(anchor: Anchor, count: int) -> Float[np.ndarray, "count d"]:
    assert anchor.factor is not None, "the anchors of the experiments have a Hessian"
    normal = np.random.default_rng(0).standard_normal((count, len(anchor.position)))
    return np.asarray(anchor.position) + normal @ np.asarray(anchor.factor).T


@dataclasses.dataclass(frozen=True)
class AsRun:
    """The authors' runs.

    SGLD burns in from 0. The other methods start at the Adam mode of their chain. Weights have no
    floor. All methods share the modes and the injected noise, so they can be compared per chain.
    """

    setting: ExperimentSetting
    posterior: AbstractPosterior
    step_size: float
    size: int
    chains: int
    seed: int
    anchors: list[Anchor]

    @classmethod
    def prepared(
        cls,
        setting: ExperimentSetting,
        posterior: AbstractPosterior,
        *,
        step_size: float,
        size: int,
        chains: int,
    ) -> AsRun:
        seed, zero, share = 11, np.zeros((chains, posterior.dim)), setting.part("modes by Adam")
        anchors = adam_anchors(posterior, zero, steps=STEPS, size=size, seed=seed, share=share)
        return cls(setting, posterior, step_size, size, chains, seed, anchors)

    def fixed(self, label: str) -> Trace:
        method, share = fixed(self.step_size, self.size, floor=0.0)[label], self.setting.part(label)
        if label == "SGLD":
            same_kernels = [kernel_of(method, self.posterior)] * self.chains
            zero = np.zeros((self.chains, self.posterior.dim))
            return trace(same_kernels, zero, STEPS, burn_in=STEPS, seed=self.seed, share=share)
        return trace(
            kernels(method, self.posterior, self.anchors),
            self._modes,
            STEPS,
            seed=self.seed,
            share=share,
        )

    def adaptive(self, label: str, pilot: Trace) -> Trace:
        """Run with n = ⌈c‖θ − θ̂‖²⌉, where c is fitted to the pilot chains of fixed size.

        c is n₀ over the largest 95 % quantile of ‖θ − θ̂‖² in a pilot chain. In the authors' code
        eq. 19 reduces to this, because Lipschitz constants and weights cancel.
        """
        displacements = np.concatenate(
            [np.zeros_like(pilot.positions[:, :1]), pilot.positions - self._modes[:, None]], axis=1
        )
        rows_per_squared_distance = (
            self.size / np.quantile(np.sum(displacements**2, axis=2), 0.95, axis=1).max()
        )
        method = fixed(self.step_size, self.size, floor=0.0)[label]
        adaptive = []
        for anchor, kernel in zip(
            self.anchors, kernels(method, self.posterior, self.anchors), strict=True
        ):
            bound = noise_bound(stream_of(kernel), self.posterior)
            size = BoundedNoise(noise_threshold=bound / rows_per_squared_distance)
            adaptive.append(
                kernel_of(dataclasses.replace(method, batch_size=size), self.posterior, anchor)
            )
        return trace(
            adaptive, self._modes, STEPS, seed=self.seed, share=self.setting.part(f"A{label}")
        )

    def path(self, label: str, trace: Trace) -> KsdPath:
        return as_run_path(trace, prefixes(STEPS), self.setting.part(f"KSD of {label}"))

    @property
    def _modes(self) -> Float[np.ndarray, "chains d"]:
        return np.array([anchor.position for anchor in self.anchors])


def burnt_in(
    setting: ExperimentSetting,
    posterior: AbstractPosterior,
    starts: Float[np.ndarray, "chains d"],
    *,
    per_cent: int,
    passes: int,
    step_size: float,
    seed: int,
    burn_in: int | None = None,
) -> dict[str, Trace]:
    """Run SGLD and SGLD-PS as in the authors' figure 4.

    The burn-in of SGLD-PS is Adam, of as many passes as it runs. So is that of SGLD, unless
    `burn_in` gives its passes.
    """
    size, steps = posterior.n_rows * per_cent // 100, passes * 100 // per_cent
    share = setting.part(f"SGLD, {per_cent} %")
    same_kernels = [kernel_of(methods.sgld(step_size, size), posterior)] * len(starts)
    before = steps if burn_in is None else burn_in * 100 // per_cent
    uniform = trace(same_kernels, starts, steps, burn_in=before, seed=seed, share=share)
    share = setting.part(f"SGLD-PS, {per_cent} %")
    anchors = adam_anchors(posterior, starts, steps=steps, size=size, seed=seed, share=share)
    preferential = kernels(methods.sgld_ps(step_size, size, floor=0.0), posterior, anchors)
    modes = np.array([anchor.position for anchor in anchors])
    return {"SGLD": uniform, "SGLD-PS": trace(preferential, modes, steps, seed=seed, share=share)}


def paths_as_meant(
    setting: ExperimentSetting,
    posterior: AbstractPosterior,
    anchor: Anchor,
    method_of: dict[str, Method],
    *,
    chains: int,
    thin: int,
    steps: int = STEPS,
) -> tuple[dict[str, KsdPath], dict[str, Draws]]:
    """Return the KSD with the right sign and the draws of every method, started at the anchor."""
    paths, draws = {}, {}
    for label, method in method_of.items():
        draws[label] = quietly_sampled(
            posterior,
            method,
            anchor,
            chains=chains,
            n_draws=steps // thin,
            thin=thin,
            seed=11,
            share=setting.part(label),
        )
        every = max(1, min(200, steps // 10) // thin)
        lengths = prefixes(steps // thin, every) + 1
        paths[label] = as_meant_path(
            posterior, draws[label], lengths, setting.part(f"KSD of {label}")
        )
    return paths, draws
