"""A method is a composition: one value on each axis. The papers' methods are named compositions of this kind (`methods.py`)."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import NamedTuple

from jaxtyping import Array, Float

from ._account import Account
from ._anchor import Anchor, Needs, check_anchor, laplace
from ._composition import check_composition
from ._errors import InvalidInput
from ._kernel import AbstractKernel, Kernel
from ._posterior import AbstractPosterior
from .correction import NoiseCorrection
from .dynamics import DynamicsChoice, Langevin
from .dynamics.base import Surroundings
from .geometry import GeometryChoice, Identity
from .gradient import GradientChoice, Simple
from .schedule import AbstractSchedule, as_schedule, in_precision
from .subsample import Adaptive, Fixed, SizeChoice, SubsampleChoice, Uniform
from .subsample.base import Setting
from .subsample.replacement import NO_ROWS
from .subsample.selection import AbstractSelection
from .subsample.size import as_size


class Prepared(NamedTuple):
    """A method made ready for one posterior."""

    kernel: AbstractKernel
    anchor: Anchor | None
    n_row_evals: int
    """Rows touched by the preparation: anchor, weights, pilot runs."""
    account: Account | None = None
    """Of an automatic choice."""
    start: Float[Array, "chains d"] | None = None
    """Where chains should start, if not at the anchor."""
    burn_in: int | None = None
    thin: int = 1


class AbstractMethod(abc.ABC):
    """What `sample` runs."""

    @property
    @abc.abstractmethod
    def needs(self) -> Needs:
        """What must be known about the posterior before the first step."""

    @property
    @abc.abstractmethod
    def has_accept_step(self) -> bool:
        """Whether potentials of the full data decide if a move is made, so that their rounding errors matter."""

    @property
    @abc.abstractmethod
    def axes(self) -> dict[str, str]:
        """What it is composed of, to be read: dynamics, gradient, subsample, size."""

    @abc.abstractmethod
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0) -> Prepared:
        """All that comes before the first step."""


def prepare_anchor(posterior: AbstractPosterior, anchor: Anchor | None, needs: Needs) -> tuple[Anchor | None, int]:
    """The anchor, found or checked, and the rows that took."""
    if not isinstance(posterior, AbstractPosterior):
        raise InvalidInput("posterior", "be a tallmc posterior", type(posterior).__name__, "See tallmc.Posterior.")
    if anchor is not None:
        return anchor, check_anchor(anchor, posterior, needs) + anchor.n_row_evals
    if needs > Needs.NOTHING:
        anchor = laplace(posterior, hessian=needs >= Needs.HESSIAN)
        return anchor, anchor.n_row_evals
    return None, 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(AbstractMethod):
    """Dynamics × gradient × subsample × size × step size × geometry, and a correction for gradient noise where wanted.

    `size` is a number of rows or `Adaptive(...)`.

    >>> import tallmc
    >>> method = Method(
    ...     dynamics=tallmc.dynamics.Langevin(),
    ...     gradient=tallmc.gradient.ControlVariate(),
    ...     subsample=tallmc.subsample.Preferential("lipschitz"),
    ...     size=100,
    ...     step_size=1e-4,
    ... )
    """

    step_size: float | AbstractSchedule
    size: int | SizeChoice | None = None
    dynamics: DynamicsChoice = dataclasses.field(default_factory=Langevin)
    gradient: GradientChoice = dataclasses.field(default_factory=Simple)
    subsample: SubsampleChoice = dataclasses.field(default_factory=Uniform)
    geometry: GeometryChoice = dataclasses.field(default_factory=Identity)
    correction: NoiseCorrection | None = None

    def __post_init__(self) -> None:
        kinds = {
            "dynamics": DynamicsChoice,
            "gradient": GradientChoice,
            "subsample": SubsampleChoice,
            "geometry": GeometryChoice,
            "correction": NoiseCorrection | None,
        }
        for axis, kind in kinds.items():
            value = getattr(self, axis)
            if not isinstance(value, kind):
                name = getattr(kind, "__name__", "NoiseCorrection or None")
                cure = f"See tallmc.{axis}." + (" It is an instance: write the brackets." if isinstance(value, type) else "")
                raise InvalidInput(axis, f"be a {name}", value, cure)
        as_schedule(self.step_size)
        as_size(self.size)
        check_composition(self)

    @property
    def needs(self) -> Needs:
        size = as_size(self.size)
        parts = (self.dynamics, self.gradient, self.subsample, self.geometry, *((size,) if size else ()))
        return max(part.needs for part in parts)

    @property
    def has_accept_step(self) -> bool:
        return self.dynamics.exact_only

    @property
    def axes(self) -> dict[str, str]:
        size = "all rows" if self.size is None else "adaptive" if isinstance(self.size, Adaptive) else "fixed"
        return {axis: _label(getattr(self, axis)) for axis in ("dynamics", "gradient", "subsample")} | {"size": size}

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0) -> Prepared:
        """All that comes before the first step: the anchor, the weights, the table and, for an adaptive size, the threshold."""
        anchor, rows = prepare_anchor(posterior, anchor, self.needs)
        rows += self.subsample.passes * posterior.n_rows
        geometry, size = self.geometry.prepare(posterior, anchor), as_size(self.size)
        setting = Setting(posterior, anchor, self.gradient.order, geometry)
        noise = None
        if self.correction is not None:
            assert isinstance(size, Fixed), "a correction is composed with a fixed size only"
            noise = self.correction.prepare(posterior, geometry, size.size)
        make_kernel = functools.partial(
            Kernel,
            gradient=self.gradient.prepare(posterior, anchor),
            dynamics=self.dynamics.prepare(Surroundings(posterior, geometry, self.correction)),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=posterior.init if anchor is None else anchor.position,
            noise_estimate=noise,
        )
        if isinstance(size, Adaptive) and size.noise_threshold is None:
            from .tuning.threshold import noise_threshold

            assert anchor is not None, "an adaptive size needs the mode"
            pilot = make_kernel(selection=self.subsample.prepare(setting, size.pilot(posterior)))
            found = noise_threshold(pilot, anchor, chains=size.pilot_chains, steps=size.pilot_steps, seed=seed)
            rows += found.n_row_evals
            law = pilot.selection.law  # type: ignore[attr-defined]
            tuned = dataclasses.replace(size, noise_threshold=found.threshold)
            selection: AbstractSelection = tuned.select(law, setting, NO_ROWS)
        else:
            selection = self.subsample.prepare(setting, size)
        rows += posterior.n_rows if isinstance(size, Adaptive) else 0  # Lipschitz constants
        return Prepared(make_kernel(selection=selection), anchor, rows)


def _label(part: object) -> str:
    """The class and, where there is one, the rule for its weights."""
    weights = getattr(part, "weights", None)
    return type(part).__name__ + (f" ({weights})" if isinstance(weights, str) else "")
