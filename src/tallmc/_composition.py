"""Which compositions make sense. Every value on one axis works with every value on the others, except where this says why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._errors import InvalidInput
from .geometry import Identity
from .gradient import ControlVariate, Full, Simple
from .subsample import Adaptive, AllRows, ExponentiallyWeighted, Fixed, Stratified
from .subsample.size import as_size

if TYPE_CHECKING:
    from ._method import Method


def check_composition(method: Method) -> None:
    """Raise, with the reason, unless the parts of this method go together."""
    _check_rows(method)
    _check_size(method)
    _check_transition(method)
    _check_geometry(method)
    _check_correction(method)


def _check_rows(method: Method) -> None:
    if isinstance(method.subsample, AllRows):
        if method.gradient.has_memory:
            rule = "have no memory with AllRows(), whose gradients have no noise to reduce"
            raise InvalidInput("gradient", rule, method.gradient, "Choose Full().")
        return
    if isinstance(method.gradient, Full):
        rule = "be AllRows() with the full gradient, which looks at every row"
        raise InvalidInput("subsample", rule, method.subsample, "For a subsample choose another gradient, as Simple().")
    if method.dynamics.exact_only:
        rule = f"be AllRows() with {type(method.dynamics).__name__}, whose accept step needs the exact gradient and potential"
        raise InvalidInput("subsample", rule, method.subsample, "Use Langevin() with a subsample.")


def _check_size(method: Method) -> None:
    all_rows = isinstance(method.subsample, AllRows)
    if all_rows and method.size is not None:
        raise InvalidInput("size", "be left out with AllRows()", method.size)
    if not all_rows and method.size is None:
        raise InvalidInput("size", "be given with a subsample", None, "Pass a number of rows or Adaptive().")
    if isinstance(method.size, Adaptive) and not isinstance(method.gradient, ControlVariate):
        rule = "be ControlVariate() with an adaptive size: the bound of eq. 19 is on its noise"
        raise InvalidInput("gradient", rule, method.gradient)


def _check_transition(method: Method) -> None:
    if isinstance(method.subsample, ExponentiallyWeighted) and not method.dynamics.has_transition:
        rule = f"be another with {type(method.dynamics).__name__}, which does not say where a gradient would move it"
        raise InvalidInput("subsample", rule, method.subsample, "Use Underdamped(...) or Langevin().")


def _check_geometry(method: Method) -> None:
    if not method.dynamics.takes_geometry and not isinstance(method.geometry, Identity):
        rule = f"be Identity() with {type(method.dynamics).__name__}, which has a metric of its own"
        raise InvalidInput("geometry", rule, method.geometry)


def _check_correction(method: Method) -> None:
    correction = method.correction
    if correction is None:
        return
    dynamics = type(method.dynamics).__name__
    if correction.through not in method.dynamics.corrects_through:
        ways = " or ".join(f'"{way}"' for way in method.dynamics.corrects_through)
        rule = f"go through {ways} with {dynamics}" if ways else f"be left out with {dynamics}, which has no such correction"
        raise InvalidInput("correction", rule, correction)
    if isinstance(method.subsample, AllRows):
        raise InvalidInput("correction", "be left out with AllRows(): there is no gradient noise", correction)
    size = as_size(method.size)
    if not isinstance(size, Fixed):
        raise InvalidInput("size", "be fixed with a noise correction", method.size)
    if correction.calibrate_every is not None:
        if not isinstance(method.gradient, Simple):
            rule = (
                "be Simple() with a calibrated correction, which knows the gradient to within the noise of control variates only"
            )
            raise InvalidInput("gradient", rule, method.gradient, "Leave calibrate_every out.")
    elif not method.subsample.knows_its_spread:
        rule = "know the spread of its batches for a correction from the batch"
        cure = "Pass calibrate_every to the correction." + (
            " Or Stratified(at_least=2)." if isinstance(method.subsample, Stratified) else ""
        )
        raise InvalidInput("subsample", rule, method.subsample, cure)
    elif size.size < 2:
        raise InvalidInput("size", "be at least 2 with a correction from the batch, which looks at its spread", method.size)
