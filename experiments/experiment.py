"""An experiment of a paper: what it shows, what it needs, and the ways in which it can be run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Literal, NamedTuple

from tallmc._core.errors import InvalidInput

from .results import ExperimentSetting, Result, Variant


class Experiment(NamedTuple):
    """A figure or table: what it shows, its module, panels and data, its minutes and where.

    The module has one function `as_VARIANT` for each variant. It is imported when it runs.
    """

    title: str
    module: str
    panels: tuple[str, ...] = ()
    argument: str | None = None
    data: tuple[str, ...] = ()
    minutes: int = 5
    place: Literal["two cores", "one H200 GPU"] = "two cores"
    variants: tuple[Variant, ...] = ("stated",)
    packages: tuple[str, ...] = ()
    """Packages that it needs besides those of a plain installation."""

    def run(self, variant: Variant, setting: ExperimentSetting) -> Result:
        if variant not in self.variants:
            raise InvalidInput("--as", f"be one of {', '.join(self.variants)} or both", variant)
        module = importlib.import_module(f".{self.module}", __package__)
        run_variant: Callable[..., Result] = getattr(module, f"as_{variant}")
        return (
            run_variant(setting) if self.argument is None else run_variant(self.argument, setting)
        )
