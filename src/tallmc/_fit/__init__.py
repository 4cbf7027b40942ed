"""Regressions of tables: formulas, coefficients on the data's scale, files of fits."""

from .fit import FitNote, fit
from .loading import load

__all__ = ["FitNote", "fit", "load"]
