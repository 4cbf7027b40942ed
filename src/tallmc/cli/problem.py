"""The problem of `tallmc fit`: a table or row store on disk, also that of a stored run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InvalidInput
from ..frontends.problem import RegressionProblem
from ..frontends.regression_model import RegressionModel
from ..frontends.tables import read_table
from ..models.posterior import ModelPosterior
from ..rows.manifest import MANIFEST
from ..rows.opening import open_rows
from ..rows.sharded import ShardedRows
from .in_place import parquet_in_place

_RUN_KIND = "tallmc fit"


@dataclasses.dataclass(frozen=True)
class FitProblem:
    """A table or row store, and the regression fitted to it."""

    path: Path
    regression: RegressionProblem

    @classmethod
    def read(cls, path: Path, model: RegressionModel, out_of_core: bool = False) -> FitProblem:
        """Read a table into memory, or open a row store; `out_of_core` opens Parquet in place."""
        if (path / MANIFEST).is_file():
            return cls(path, RegressionProblem.of_rows(open_rows(path), model))
        if out_of_core:
            if model.response is None:
                cure = "Pass --response; the formula needs a row store or memory."
                raise InvalidInput(
                    "--formula", "be left out with --out-of-core", model.formula, cure
                )
            rows = parquet_in_place(path, model.response, model.standardise, model.intercept)
            return cls(path, RegressionProblem.of_rows(rows, model))
        return cls(
            path, RegressionProblem.of_table(read_table(path, separator=model.separator), model)
        )

    @classmethod
    def of_run(
        cls, about: Mapping[str, Any], table: Path | None, formula: str | None = None
    ) -> FitProblem:
        """Rebuild the problem that `about` in a store describes.

        `table` replaces a moved file. A formula is code, so it must be passed again.
        """
        if about.get("kind") != _RUN_KIND:
            cure = "Resume it from Python: tallmc.resume(store, posterior)."
            raise InvalidInput(
                "RUN", "come from `tallmc fit --store`", "a run of another program", cure
            )
        model = RegressionModel.from_json(about["model"], formula)
        path = Path(about["table"]) if table is None else table
        if table is None and str(path) == "-":
            cure = "Pass --table with the file, or --table - to read standard input again."
            raise InvalidInput("--table", "be given", "a run on standard input", cure)
        return cls.read(path, model, bool(about.get("out_of_core", False)))

    @property
    def posterior(self) -> ModelPosterior:
        return self.regression.posterior

    @property
    def is_out_of_core(self) -> bool:
        return isinstance(self.posterior.rows, ShardedRows)

    def about(self) -> dict[str, Any]:
        """What a store needs to rebuild the problem."""
        is_stream = str(self.path) == "-"
        return {
            "kind": _RUN_KIND,
            "table": "-" if is_stream else str(self.path.resolve()),
            "model": self.regression.form.model.to_json(),
            "encoding": self.regression.form.encoding.to_json(),
            "out_of_core": self.is_out_of_core,
        }
