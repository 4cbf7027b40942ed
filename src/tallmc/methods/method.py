"""A method as a composition of one part per axis.

The methods of the papers are named compositions (`named.py`).
"""

from __future__ import annotations

import dataclasses
import functools

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.errors import InvalidInput
from ..correction import NoiseCorrection
from ..dynamics import DynamicsChoice, Langevin
from ..dynamics.base import Curvature, DynamicsContext, Suggestion
from ..engine.kernel import BoundKernel, Kernel
from ..geometry import GeometryChoice, Identity
from ..gradient import GradientChoice, Simple
from ..models.posterior import AbstractPosterior
from ..rows.base import RowAccess
from ..schedule import AbstractSchedule, as_schedule, in_precision
from ..subsample import Adaptive, Fixed, SizeChoice, SubsampleChoice, Uniform
from ..subsample.base import SubsampleContext
from ..subsample.replacement import NO_ROWS, WithReplacement
from ..subsample.selection import AbstractSelection
from ..subsample.size import as_size
from .base import AbstractMethod, PreparedMethod, RunDefaults, check_row_access, prepare_anchor
from .compatibility import Composition, check_composition
from .noise_threshold import noise_threshold

StepSize = float | AbstractSchedule
Size = int | SizeChoice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(AbstractMethod):
    """A sampling method, composed of one part per axis.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice such as `Adaptive(...)`; None with
      `AllRows()`.
    - `dynamics`: how a gradient estimate moves the state.
    - `gradient`: the gradient estimator.
    - `subsample`: the rows that a step uses, and their weights.
    - `geometry`: the coordinates in which the dynamics moves.
    - `correction`: the correction for gradient noise, if any.

    **Raises:** `InvalidInput` if a part has the wrong type or the parts do not fit together.

    >>> import tallmc
    >>> method = Method(
    ...     dynamics=tallmc.dynamics.Langevin(),
    ...     gradient=tallmc.gradient.ControlVariate(),
    ...     subsample=tallmc.subsample.Preferential("lipschitz"),
    ...     size=100,
    ...     step_size=1e-4,
    ... )
    """

    step_size: StepSize
    size: Size | None = None
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
                cure = f"See tallmc.{axis}." + (
                    " It is an instance: write the brackets." if isinstance(value, type) else ""
                )
                raise InvalidInput(axis, f"be a {name}", value, cure)
        as_schedule(self.step_size)
        as_size(self.size)
        check_composition(
            Composition(
                self.dynamics,
                self.gradient,
                self.subsample,
                self.size,
                self.geometry,
                self.correction,
            )
        )

    @property
    def needs(self) -> AnchorLevel:
        size = as_size(self.size)
        parts = (
            self.dynamics,
            self.gradient,
            self.subsample,
            self.geometry,
            *((size,) if size else ()),
        )
        return max(part.needs for part in parts)

    @property
    def row_access(self) -> RowAccess:
        size = as_size(self.size)
        return max(
            part.row_access for part in (self.gradient, self.subsample, *((size,) if size else ()))
        )

    def defaults(self, dim: int) -> RunDefaults:
        return RunDefaults(chains=4, draws=1000, ess=None)

    @property
    def has_accept_step(self) -> bool:
        return self.dynamics.exact_only

    @property
    def exact(self) -> bool:
        return self.dynamics.exact_only

    @property
    def unseen_by_pairs(self) -> str | None:
        return self.dynamics.unseen_by_pairs or self.subsample.unseen_by_pairs

    @property
    def axes(self) -> dict[str, str]:
        size = (
            "all rows"
            if self.size is None
            else "adaptive"
            if isinstance(self.size, Adaptive)
            else "fixed"
        )
        return {
            axis: _label(getattr(self, axis)) for axis in ("dynamics", "gradient", "subsample")
        } | {"size": size}

    def suggest(self, curvature: Curvature) -> Suggestion:
        return self.dynamics.suggest(curvature)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Find the anchor, the weights and, for an adaptive size, the noise threshold."""
        anchor, rows = prepare_anchor(posterior, anchor, self.needs)
        check_row_access(self, posterior)
        rows += self.subsample.passes * posterior.n_rows
        geometry, size = self.geometry.prepare(posterior, anchor), as_size(self.size)
        context = SubsampleContext(posterior, anchor, self.gradient.order, geometry)
        noise = None
        if self.correction is not None:
            assert isinstance(size, Fixed), "a correction requires a fixed size"
            noise = self.correction.prepare(posterior, geometry, size.size)
        make_kernel = functools.partial(
            Kernel,
            gradient=self.gradient.prepare(posterior, anchor),
            dynamics=self.dynamics.prepare(DynamicsContext(posterior, geometry, self.correction)),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=posterior.init if anchor is None else anchor.position,
            noise_estimate=noise,
        )
        if isinstance(size, Adaptive) and size.noise_threshold is None:
            assert anchor is not None, "an adaptive size requires the mode"
            pilot_selection = self.subsample.prepare(context, size.pilot(posterior))
            assert isinstance(pilot_selection, WithReplacement), (
                "an adaptive size draws with replacement"
            )
            pilot = BoundKernel(make_kernel(selection=pilot_selection), posterior)
            pilot_result = noise_threshold(
                pilot, anchor, chains=size.pilot_chains, steps=size.pilot_steps, seed=seed
            )
            rows += pilot_result.n_row_evals
            tuned = dataclasses.replace(size, noise_threshold=pilot_result.threshold)
            selection: AbstractSelection = tuned.select(pilot_selection.stream, context, NO_ROWS)
        else:
            selection = self.subsample.prepare(context, size)
        rows += posterior.n_rows if isinstance(size, Adaptive) else 0  # Lipschitz constants
        return PreparedMethod(
            BoundKernel(make_kernel(selection=selection), posterior), anchor, rows
        )


def _label(part: object) -> str:
    """Return the class name and, if the part has one, the rule for its weights."""
    weights = getattr(part, "weights", None)
    return type(part).__name__ + (f" ({weights})" if isinstance(weights, str) else "")
