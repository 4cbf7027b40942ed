"""A method as a composition of one part per axis.

The methods of the papers are named compositions (`named.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._anchor.anchor import Anchor, AnchorLevel
from .._core.arrays import AbstractLinearMap, IdentityMap
from .._core.errors import InvalidInput, Outcome, PreparationError, check_int
from .._core.supervision import stage
from .._engine.kernel import BoundKernel, Kernel
from .._engine.run import DrawSink, Run, chain_keys
from .._rows.access import RowAccess
from ..correction import NoiseCorrection
from ..dynamics import AbstractDynamics, Langevin
from ..dynamics.dynamics import Curvature, Suggestion
from ..geometry import GeometryChoice, Identity
from ..gradient import AbstractGradient, ControlVariate, Full, Simple
from ..models.posterior import AbstractPosterior
from ..schedule import AbstractSchedule, as_schedule, in_precision
from ..subsample import (
    AllRows,
    BoundedNoise,
    ExponentiallyWeighted,
    Fixed,
    Preferential,
    SizeChoice,
    Stratified,
    SubsampleChoice,
    Uniform,
)
from ..subsample.bounded_noise import noise_bound
from ..subsample.selection import (
    NO_ROWS,
    AbstractSelection,
    SubsampleContext,
    WithReplacement,
    as_size,
)
from .abstract import AbstractMethod, PreparedMethod, check_row_access, labels, prepare_anchor

# The noise threshold V₀ of an adaptive size, as in section 5.3.3 of putcha-2023.
#
# Pilot chains run with a fixed size n₀. In each chain q is the 95th percentile of ‖θ − θ̂‖², and
# the bound of eq. 18 at that distance is (1/n₀) q Σ L_i²/p_i. V₀ is the largest of these bounds.
# The adaptive chain then uses about n₀ rows at the edge of the pilot's region and fewer inside.


_STEPS_AT_ONCE = 1000
_PILOT_PURPOSE = 1  # separates the keys of pilot runs from the keys of the run


class Threshold(NamedTuple):
    """Result of `noise_threshold`."""

    threshold: float  # V₀
    squared_distances: np.ndarray  # 95th percentile of ‖θ − θ̂‖² in each pilot chain
    n_row_evals: int  # Rows touched by the pilot runs and by the bound


def noise_threshold(
    kernel: BoundKernel, anchor: Anchor, *, chains: int = 10, steps: int = 10_000, seed: int = 0
) -> Threshold:
    """Find the noise threshold V₀ by pilot runs that start at the anchor.

    `kernel` is that of a prepared method with a fixed size, drawn with replacement. Raises
    `PreparationError` if a pilot chain reaches a position that is not finite.
    """
    selection = _selection_of(kernel)
    chains, steps = check_int("chains", chains, 1), check_int("steps", steps, 20)
    sink, start = DrawSink(), jnp.broadcast_to(anchor.position, (chains, *anchor.position.shape))
    keys = chain_keys(seed, chains, _PILOT_PURPOSE)
    run = Run(kernel, keys, start, burn_in=0, thin=1, n_draws=0, sink=sink)
    centre, distances = np.asarray(anchor.position, np.float64), []
    stage("running pilot chains for the adaptive size")
    while run.step < steps:  # in parts, so memory does not grow with the number of steps
        run.run_to(min(run.step + _STEPS_AT_ONCE, steps))
        distances.append(np.sum((run.positions() - centre) ** 2, axis=2))
        sink.forget()
    if any(outcome is not Outcome.OK for outcome in run.outcomes()):
        raise PreparationError(
            "a pilot run for the adaptive size failed: a chain reached a position that is not "
            "finite. Make the step size smaller, the pilot size larger, or pass "
            "BoundedNoise(noise_threshold=...)."
        )
    squared_distances = np.percentile(np.concatenate(distances, axis=1), 95, axis=1)
    bound_of_one_row = noise_bound(selection.stream, kernel.posterior)
    threshold = float(squared_distances.max() * bound_of_one_row / selection.size)
    n_row_evals = run.rows_touched() + kernel.posterior.n_rows
    return Threshold(threshold, squared_distances, n_row_evals)


def _selection_of(kernel: BoundKernel) -> WithReplacement:
    parts = kernel.kernel if isinstance(kernel, BoundKernel) else None
    if isinstance(parts, Kernel) and isinstance(parts.selection, WithReplacement):
        return parts.selection
    rule = "be a prepared method of fixed size with replacement"
    cure = "Pass tallmc.methods.sgld_cv(...).prepare(posterior, anchor).kernel."
    raise InvalidInput("kernel", rule, type(kernel).__name__, cure)


# Rules for which parts fit together.
#
# Every part of one axis works with every part of the other axes, except where a check here raises.


def check_composition(method: Method) -> None:
    """Raise `InvalidInput` with the reason unless the parts fit together."""
    for is_broken, parameter, rule, cure in _rules(method):
        if is_broken:
            raise InvalidInput(parameter, rule, getattr(method, parameter), cure)


def _rules(method: Method) -> Iterator[tuple[bool, str, str, str]]:
    """Whether a rule is broken, the part that breaks it, the rule and the cure; in order."""
    dynamics, gradient, subsample = method.dynamics, method.gradient, method.subsample
    name, size = type(dynamics).__name__, as_size(method.batch_size)
    all_rows, simple = isinstance(subsample, AllRows), isinstance(gradient, Simple)
    rule = "have no memory with AllRows(), whose gradients have no noise"
    yield all_rows and gradient.has_memory, "gradient", rule, "Choose Full()."
    rule = "be AllRows() with the full gradient, which uses every row"
    cure = "To subsample, choose another gradient, such as Simple()."
    yield not all_rows and isinstance(gradient, Full), "subsample", rule, cure
    rule = f"be AllRows() with {name}, whose accept step needs the exact gradient and potential"
    cure = "Use Langevin() with a subsample."
    yield not all_rows and dynamics.exact_only, "subsample", rule, cure
    yield all_rows and size is not None, "batch_size", "be left out with AllRows()", ""
    cure = "Pass a number of rows or BoundedNoise()."
    yield not all_rows and size is None, "batch_size", "be given with a subsample", cure
    rule = "be ControlVariate(order=1) with an adaptive size: eq. 18 bounds its noise only"
    cure = "For another gradient, TargetNoise(size, noise) adapts the size to the measured noise."
    adaptive = isinstance(size, BoundedNoise)
    yield adaptive and gradient != ControlVariate(order=1), "gradient", rule, cure
    if dynamics.reads_fisher_information:
        reason = (
            f"with {name}, which reads the Fisher information off the gradients of a step's rows"
        )
        yield not simple, "gradient", f"be Simple() {reason}", ""
        uniform = isinstance(subsample, Uniform) and subsample.replace
        yield not uniform, "subsample", f"be Uniform() {reason}", ""
        enough = isinstance(size, Fixed) and size.size >= 2
        yield not enough, "batch_size", f"be an int of at least 2 {reason}", ""
    weighted = isinstance(subsample, ExponentiallyWeighted)
    rule = (
        f"not be exponentially weighted with {name}, which does not provide its transition density"
    )
    cure = "Use Langevin(), or SGHMC, BAOAB, GeometricLangevin or Hamiltonian with friction."
    yield weighted and not dynamics.has_transition, "subsample", rule, cure
    moved = not isinstance(method.geometry, Identity)
    rule = f"be Identity() with {name}, {dynamics.why_no_geometry}"
    yield moved and not dynamics.takes_geometry, "geometry", rule, ""
    if method.correction is not None:
        yield from _rules_of_corrections(method, method.correction)


def _rules_of_corrections(
    method: Method, correction: NoiseCorrection
) -> Iterator[tuple[bool, str, str, str]]:
    name, subsample, size = type(method.dynamics).__name__, method.subsample, method.batch_size
    ways = " or ".join(f'"{way}"' for way in method.dynamics.corrects_through)
    rule = f"go through {ways} with {name}"
    if not ways:
        rule = f"be left out with {name}, which injects no noise that it could reduce"
    yield correction.through not in method.dynamics.corrects_through, "correction", rule, ""
    rule = "be left out with AllRows(), which has no gradient noise"
    yield isinstance(subsample, AllRows), "correction", rule, ""
    fixed = as_size(size)
    yield not isinstance(fixed, Fixed), "batch_size", "be fixed with a noise correction", ""
    assert isinstance(fixed, Fixed), "the rule above"
    if correction.calibrate_every is not None:
        rule = (
            "be Simple() with a calibrated correction, "
            "which knows the gradient up to the noise of control variates only"
        )
        simple = isinstance(method.gradient, Simple)
        yield not simple, "gradient", rule, "Leave calibrate_every out."
        return
    rule = "know the spread of its batches for a correction estimated from the batch"
    cure = "Pass calibrate_every to the correction."
    if isinstance(subsample, Stratified):
        cure += " Or use Stratified(at_least=2)."
    yield not subsample.knows_its_spread, "subsample", rule, cure
    if correction.groups is None:
        rule = "be at least 2 with a correction estimated from the spread of the batch"
        yield fixed.size < 2, "batch_size", rule, ""
        return
    independent = isinstance(subsample, Preferential) and not subsample.take_all
    if isinstance(subsample, Uniform):
        independent = subsample.replace
    rule = "draw rows independently with a correction from groups, which must be of one law"
    cure = "Use Uniform() or Preferential(...), or leave groups out."
    yield not independent, "subsample", rule, cure
    rule = f"be a multiple of the number of groups, {correction.groups}"
    yield fixed.size % correction.groups > 0, "batch_size", rule, ""


StepSize = float | AbstractSchedule | Any
"""A number, a schedule, or any function of the step number."""
Size = int | SizeChoice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(AbstractMethod):
    """A sampling method, composed of one part per axis.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `batch_size`: rows per step, a number or a size choice such as `BoundedNoise(...)`; None with
      `AllRows()`.
    - `dynamics`: how a gradient estimate moves the state.
    - `gradient`: the gradient estimator.
    - `subsample`: the rows that a step uses, and their weights.
    - `geometry`: the coordinates in which the dynamics moves.
    - `correction`: the correction for gradient noise, if any.

    >>> import tallmc
    >>> method = Method(
    ...     dynamics=tallmc.dynamics.Langevin(),
    ...     gradient=tallmc.gradient.ControlVariate(),
    ...     subsample=tallmc.subsample.Preferential("lipschitz"),
    ...     batch_size=100,
    ...     step_size=1e-4,
    ... )
    """

    step_size: StepSize
    batch_size: Size | None = None
    dynamics: AbstractDynamics = dataclasses.field(default_factory=Langevin)
    gradient: AbstractGradient = dataclasses.field(default_factory=Simple)
    subsample: SubsampleChoice = dataclasses.field(default_factory=Uniform)
    geometry: GeometryChoice = dataclasses.field(default_factory=Identity)
    correction: NoiseCorrection | None = None

    def __post_init__(self) -> None:
        kinds = {
            "dynamics": AbstractDynamics,
            "gradient": AbstractGradient,
            "subsample": SubsampleChoice,
            "geometry": GeometryChoice,
            "correction": NoiseCorrection | None,
        }
        for axis, kind in kinds.items():
            value = getattr(self, axis)
            if not isinstance(value, kind):
                cure = f"See tallmc.{axis}."
                if isinstance(value, type):
                    cure += " It is an instance: write the brackets."
                raise InvalidInput(axis, f"be one of the parts in tallmc.{axis}", value, cure)
        as_schedule(self.step_size)
        as_size(self.batch_size)
        check_composition(self)

    @property
    def needs(self) -> AnchorLevel:
        size = as_size(self.batch_size)
        parts = (self.dynamics, self.gradient, self.subsample, self.geometry, size)
        return max(part.needs for part in parts if part is not None)

    @property
    def row_access(self) -> RowAccess:
        parts = (self.gradient, self.subsample, as_size(self.batch_size))
        return max(part.row_access for part in parts if part is not None)

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
        size = "adaptive" if isinstance(self.batch_size, BoundedNoise) else "fixed"
        size = "all rows" if self.batch_size is None else size
        return labels(_label(self.dynamics), _label(self.gradient), _label(self.subsample), size)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return self.dynamics.suggest(curvature)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Find the anchor, the weights and, for an adaptive size, the noise threshold."""
        anchor, rows = prepare_anchor(posterior, anchor, self.needs)
        check_row_access(self, posterior)
        rows += self.subsample.passes * posterior.n_rows
        size = as_size(self.batch_size)
        geometry: AbstractLinearMap = IdentityMap()
        if not isinstance(self.geometry, Identity):
            geometry = self.geometry.prepare(posterior, anchor)
        context = SubsampleContext(posterior, anchor, self.gradient.order, geometry)
        noise = None
        if self.correction is not None:
            assert isinstance(size, Fixed), "a correction requires a fixed size"
            noise = self.correction.prepare(posterior, geometry, size.size)
        make_kernel = functools.partial(
            Kernel,
            gradient=self.gradient.prepare(posterior, anchor),
            dynamics=self.dynamics.prepare(posterior, geometry, self.correction),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=posterior.init if anchor is None else anchor.position,
            noise_estimate=noise,
        )
        if isinstance(size, BoundedNoise) and size.noise_threshold is None:
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
        rows += posterior.n_rows if isinstance(size, BoundedNoise) else 0  # Lipschitz constants
        return PreparedMethod(
            BoundKernel(make_kernel(selection=selection), posterior), anchor, rows
        )


def _label(part: object) -> str:
    """Return the class name and, if the part has one, the rule for its weights."""
    weights = getattr(part, "weights", None)
    return type(part).__name__ + (f" ({weights})" if isinstance(weights, str) else "")
