"""A report on a stored run, or on priors: one self-contained HTML page."""

from .page import write_prior_predictive, write_report

__all__ = ["write_prior_predictive", "write_report"]
