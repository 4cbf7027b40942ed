"""What to tell the user when a search for the mode fails."""

from __future__ import annotations

from jaxtyping import ArrayLike

from ..core.errors import PreparationError
from ..models.bad_rows import first_bad_row
from ..models.generalised_linear import GeneralisedLinear
from ..models.hierarchy import Hierarchical
from ..models.linear_predictor import LinearPredictor
from ..models.posterior import AbstractPosterior
from .passes import CountedPasses


def has_columns(posterior: AbstractPosterior) -> bool:
    """Whether the rows enter the model through the columns of a design matrix."""
    return isinstance(posterior.model, GeneralisedLinear | LinearPredictor | Hierarchical)


def how_to_help_a_search(posterior: AbstractPosterior) -> str:
    """What helps a search that did not reach the mode, as the first words of a sentence."""
    scales = (
        "Standardise the columns"
        if has_columns(posterior)
        else "Rescale the parameters so that their posterior standard deviations are similar"
    )
    return f"{scales}, use a proper prior or another init"


def not_finite(passes: CountedPasses, position: ArrayLike, where: str) -> PreparationError:
    """The error for a potential or gradient that is not finite; it names the first bad row."""
    row = first_bad_row(passes.posterior, position)
    passes.n_row_evals += passes.posterior.n_rows
    cause = (
        "Every row is finite there, so the prior is not, or the sum over the rows overflows. "
        if row is None
        else f"The first row whose likelihood is not finite is row {row}, counted from 0. "
    )
    cure = "Start where the density is positive" + ("." if row is None else ", or mend this row.")
    return PreparationError(f"the potential or its gradient is not finite {where}. {cause}{cure}")
