"""Rules for which parts fit together.

Every part of one axis works with every part of the other axes, except where a check here raises.
"""

from __future__ import annotations

from typing import NamedTuple

from ..core.errors import InvalidInput
from ..correction import NoiseCorrection
from ..dynamics import DynamicsChoice
from ..geometry import GeometryChoice, Identity
from ..gradient import ControlVariate, Full, GradientChoice, Simple
from ..subsample import (
    Adaptive,
    AllRows,
    ExponentiallyWeighted,
    Fixed,
    Preferential,
    SizeChoice,
    Stratified,
    SubsampleChoice,
    Uniform,
)
from ..subsample.size import as_size


class Composition(NamedTuple):
    """The parts of a method that restrict each other."""

    dynamics: DynamicsChoice
    gradient: GradientChoice
    subsample: SubsampleChoice
    size: int | SizeChoice | None
    geometry: GeometryChoice
    correction: NoiseCorrection | None


def check_composition(method: Composition) -> None:
    """Raise `InvalidInput` with the reason unless the parts fit together."""
    _check_rows(method)
    _check_size(method)
    _check_fisher(method)
    _check_transition(method)
    _check_geometry(method)
    _check_correction(method)


def _check_rows(method: Composition) -> None:
    if isinstance(method.subsample, AllRows):
        if method.gradient.has_memory:
            rule = "have no memory with AllRows(), whose gradients have no noise"
            raise InvalidInput("gradient", rule, method.gradient, "Choose Full().")
        return
    if isinstance(method.gradient, Full):
        rule = "be AllRows() with the full gradient, which uses every row"
        cure = "To subsample, choose another gradient, such as Simple()."
        raise InvalidInput("subsample", rule, method.subsample, cure)
    if method.dynamics.exact_only:
        rule = (
            f"be AllRows() with {type(method.dynamics).__name__}, "
            "whose accept step needs the exact gradient and potential"
        )
        raise InvalidInput("subsample", rule, method.subsample, "Use Langevin() with a subsample.")


def _check_size(method: Composition) -> None:
    all_rows = isinstance(method.subsample, AllRows)
    if all_rows and method.size is not None:
        raise InvalidInput("size", "be left out with AllRows()", method.size)
    if not all_rows and method.size is None:
        raise InvalidInput(
            "size", "be given with a subsample", None, "Pass a number of rows or Adaptive()."
        )
    if isinstance(method.size, Adaptive) and method.gradient != ControlVariate(order=1):
        rule = "be ControlVariate(order=1) with an adaptive size: eq. 18 bounds its noise only"
        cure = "For another gradient, Measured(size, noise) adapts the size to the measured noise."
        raise InvalidInput("gradient", rule, method.gradient, cure)


def _check_fisher(method: Composition) -> None:
    if not method.dynamics.reads_fisher_information:
        return
    reason = (
        f"with {type(method.dynamics).__name__}, which reads the Fisher information "
        "off the gradients of a step's rows"
    )
    if not isinstance(method.gradient, Simple):
        raise InvalidInput("gradient", f"be Simple() {reason}", method.gradient)
    if not isinstance(method.subsample, Uniform) or not method.subsample.replace:
        raise InvalidInput("subsample", f"be Uniform() {reason}", method.subsample)
    size = as_size(method.size)
    if not isinstance(size, Fixed) or size.size < 2:
        raise InvalidInput("size", f"be an int of at least 2 {reason}", method.size)


def _check_transition(method: Composition) -> None:
    if isinstance(method.subsample, ExponentiallyWeighted) and not method.dynamics.has_transition:
        rule = (
            f"not be exponentially weighted with {type(method.dynamics).__name__}, "
            "which does not provide its transition density"
        )
        raise InvalidInput(
            "subsample",
            rule,
            method.subsample,
            "Use Langevin(), or Underdamped, Splitting, GeometricLangevin or Hamiltonian with "
            "friction.",
        )


def _check_geometry(method: Composition) -> None:
    if not method.dynamics.takes_geometry and not isinstance(method.geometry, Identity):
        dynamics = method.dynamics
        rule = f"be Identity() with {type(dynamics).__name__}, {dynamics.why_no_geometry}"
        raise InvalidInput("geometry", rule, method.geometry)


def _check_correction(method: Composition) -> None:
    correction = method.correction
    if correction is None:
        return
    dynamics = type(method.dynamics).__name__
    if correction.through not in method.dynamics.corrects_through:
        ways = " or ".join(f'"{way}"' for way in method.dynamics.corrects_through)
        rule = (
            f"go through {ways} with {dynamics}"
            if ways
            else f"be left out with {dynamics}, which injects no noise that it could reduce"
        )
        raise InvalidInput("correction", rule, correction)
    if isinstance(method.subsample, AllRows):
        raise InvalidInput(
            "correction", "be left out with AllRows(), which has no gradient noise", correction
        )
    size = as_size(method.size)
    if not isinstance(size, Fixed):
        raise InvalidInput("size", "be fixed with a noise correction", method.size)
    if correction.calibrate_every is not None:
        if not isinstance(method.gradient, Simple):
            rule = (
                "be Simple() with a calibrated correction, "
                "which knows the gradient up to the noise of control variates only"
            )
            raise InvalidInput("gradient", rule, method.gradient, "Leave calibrate_every out.")
    elif not method.subsample.knows_its_spread:
        rule = "know the spread of its batches for a correction estimated from the batch"
        cure = "Pass calibrate_every to the correction." + (
            " Or use Stratified(at_least=2)." if isinstance(method.subsample, Stratified) else ""
        )
        raise InvalidInput("subsample", rule, method.subsample, cure)
    elif correction.groups is not None:
        _check_groups(method.subsample, size.size, correction.groups)
    elif size.size < 2:
        rule = "be at least 2 with a correction estimated from the spread of the batch"
        raise InvalidInput("size", rule, method.size)


def _check_groups(subsample: SubsampleChoice, size: int, groups: int) -> None:
    independent = (
        subsample.replace
        if isinstance(subsample, Uniform)
        else isinstance(subsample, Preferential) and not subsample.take_all
    )
    if not independent:
        rule = "draw rows independently with a correction from groups, which must be of one law"
        cure = "Use Uniform() or Preferential(...), or leave groups out."
        raise InvalidInput("subsample", rule, subsample, cure)
    if size % groups:
        raise InvalidInput("size", f"be a multiple of the number of groups, {groups}", size)
