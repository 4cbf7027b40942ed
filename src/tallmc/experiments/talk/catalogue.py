"""The list of the experiments of the talk on preferential subsampling."""

from __future__ import annotations

from ..experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
