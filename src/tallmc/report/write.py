"""Write the report of a stored run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InvalidInput
from ..models.posterior import AbstractPosterior
from ..store.files import StoreError, blaming
from ..store.fingerprint import fingerprint, same_posterior
from ..store.reader import open_store
from .content import make_content
from .page import render


def write_report(
    store: str | os.PathLike[str] | Any,
    out: str | os.PathLike[str],
    *,
    posterior: AbstractPosterior | None = None,
    parameters: Sequence[str] | None = None,
) -> None:
    """Write an HTML report about a stored run.

    **Arguments:**

    - `store`: the store of the run.
    - `out`: the file to write.
    - `posterior`: the posterior of the run. If given, the report has the kernel Stein discrepancy,
      the gradient noise of methods that do not measure it, and a posterior predictive check.
    - `parameters`: names of the parameters whose traces, marginals and pairs are plotted. Defaults
      to the first six.

    **Raises:** `StoreError` if the store has no draws or belongs to another posterior;
    `InvalidInput` if a parameter is unknown or `out` cannot be written.

    >>> import tempfile, tallmc
    >>> folder = tempfile.mkdtemp()
    >>> X, y = [[1.0], [2.0]], [0.0, 1.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=10.0, noise_variance=1.0)
    >>> draws = tallmc.sample(posterior, tallmc.mala(0.01), draws=50, store=folder + "/run")
    >>> write_report(folder + "/run", folder + "/report.html")
    """
    opened = open_store(store)
    if not opened.manifest.n_draws:
        raise StoreError(
            opened.path, "have at least one draw", "none yet", "Continue with `tallmc resume`."
        )
    if posterior is not None and not same_posterior(
        fingerprint(posterior), opened.setup.content["posterior"]
    ):
        raise StoreError(
            opened.path, "be reported with the posterior it was started with", "another"
        )
    with blaming(opened.path, "describe the run"):
        page = render(make_content(opened, posterior, parameters))
    try:
        Path(out).write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            "--out", "be a file that can be written", f"{out}: {error.strerror}"
        ) from None
