"""The list of the experiments of the poster on SGLD with control variates."""

from __future__ import annotations

from ..experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
