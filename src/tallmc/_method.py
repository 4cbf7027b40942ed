"""A method is a composition: one value on each axis. The papers' methods are named compositions of this kind (`methods.py`)."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ._anchor import Anchor, Needs, check_anchor, laplace
from ._errors import InvalidInput
from ._kernel import Kernel
from ._posterior import AbstractPosterior
from .dynamics import DynamicsChoice, Langevin
from .gradient import ControlVariate, Full, GradientChoice, Simple
from .schedule import AbstractSchedule, as_schedule
from .subsample import Adaptive, AllRows, SizeChoice, SubsampleChoice, Uniform
from .subsample.selection import AbstractSelection
from .subsample.size import as_size
from .tune.threshold import noise_threshold


class Prepared(NamedTuple):
    """A method made ready for one posterior."""

    kernel: Kernel
    anchor: Anchor | None
    n_row_evals: int
    """Rows touched by the preparation: anchor, weights, pilot runs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """Dynamics × gradient × subsample × size × step size. `size` is a number of rows or `Adaptive(...)`.

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

    def __post_init__(self) -> None:
        for axis, kind in (("dynamics", DynamicsChoice), ("gradient", GradientChoice), ("subsample", SubsampleChoice)):
            value = getattr(self, axis)
            if not isinstance(value, kind):
                cure = f"See tallmc.{axis}." + (" It is an instance: write the brackets." if isinstance(value, type) else "")
                raise InvalidInput(axis, f"be a {kind.__name__}", value, cure)
        as_schedule(self.step_size)
        self._check_composition()

    def _check_composition(self) -> None:
        all_rows = isinstance(self.subsample, AllRows)
        if isinstance(self.gradient, Full) and not all_rows:
            rule = "be AllRows() with the full gradient, which looks at every row"
            raise InvalidInput("subsample", rule, self.subsample, "For a subsample choose Simple() or ControlVariate().")
        if self.dynamics.exact_only and not all_rows:
            rule = f"be AllRows() with {type(self.dynamics).__name__}, whose accept step needs the exact gradient and potential"
            raise InvalidInput("subsample", rule, self.subsample, "Use Langevin() with a subsample.")
        if all_rows and self.size is not None:
            raise InvalidInput("size", "be left out with AllRows()", self.size)
        if not all_rows and self.size is None:
            raise InvalidInput("size", "be given with a subsample", None, "Pass a number of rows or Adaptive().")
        as_size(self.size)
        if isinstance(self.size, Adaptive) and not isinstance(self.gradient, ControlVariate):
            rule = "be ControlVariate() with an adaptive size: the bound of eq. 19 is on its noise"
            raise InvalidInput("gradient", rule, self.gradient)

    @property
    def needs(self) -> Needs:
        """What must be known about the posterior before the first step."""
        size = as_size(self.size)
        return max(self.dynamics.needs, self.gradient.needs, self.subsample.needs, size.needs if size else Needs.NOTHING)

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0) -> Prepared:
        """All that comes before the first step: the anchor, the weights, the table and, for an adaptive size, the threshold."""
        if not isinstance(posterior, AbstractPosterior):
            raise InvalidInput("posterior", "be a tallmc posterior", type(posterior).__name__, "See tallmc.Posterior.")
        rows = self.subsample.passes * posterior.n_rows
        if anchor is not None:
            rows += check_anchor(anchor, posterior, self.needs)
        elif self.needs > Needs.NOTHING:
            anchor = laplace(posterior, hessian=self.needs >= Needs.HESSIAN)
        rows += 0 if anchor is None else anchor.n_row_evals
        schedule = jax.tree.map(lambda value: jnp.asarray(value, posterior.dtype), as_schedule(self.step_size))
        size = as_size(self.size)
        make_kernel = functools.partial(
            Kernel,
            gradient=self.gradient.prepare(posterior, anchor),
            dynamics=self.dynamics.prepare(posterior, anchor),
            schedule=schedule,
            rest=posterior.init if anchor is None else anchor.position,
        )
        if isinstance(size, Adaptive) and size.noise_threshold is None:
            assert anchor is not None, "an adaptive size needs the mode"
            pilot = make_kernel(selection=self.subsample.prepare(posterior, anchor, size.pilot(posterior)))
            found = noise_threshold(pilot, anchor, chains=size.pilot_chains, steps=size.pilot_steps, seed=seed)
            rows += found.n_row_evals
            law = pilot.selection.law  # type: ignore[attr-defined]
            tuned = dataclasses.replace(size, noise_threshold=found.threshold)
            selection: AbstractSelection = tuned.select(law, posterior, anchor)
        else:
            selection = self.subsample.prepare(posterior, anchor, size)
        rows += posterior.n_rows if isinstance(size, Adaptive) else 0  # Lipschitz constants
        return Prepared(make_kernel(selection=selection), anchor, rows)
