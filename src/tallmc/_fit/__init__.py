"""Regressions of tables: formulas, coefficients on the data's scale, files of fits."""

from .fit import FitNote, fit
from .loading import load
from .resume import resume

__all__ = ["FitNote", "fit", "load", "resume"]
