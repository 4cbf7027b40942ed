"""The list of the experiments of Li, Wang, Zha and Tao (2021)."""

from __future__ import annotations

from ..experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
