"""Regressions of tables: formulas, coefficients on the data's scale, files of fits."""

from .fit import FitNote, fit
from .stored import load, resume

__all__ = ["FitNote", "fit", "load", "resume"]
