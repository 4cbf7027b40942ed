"""From a store to the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._errors import InvalidInput
from .._posterior import AbstractPosterior
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
    """Write a page about the run in `store` to the file `out`.

    `parameters` are those whose traces, marginals and pairs are drawn, the first six unless given. With the `posterior` the page
    has the kernel Stein discrepancy and the gradient noise of methods that do not measure it.

    >>> import tempfile, numpy as np, tallmc
    >>> posterior = tallmc.models.linear_regression(np.ones((100, 1)), np.arange(100.0), prior_variance=1e6)
    >>> folder = tempfile.mkdtemp()
    >>> draws = tallmc.sample(posterior, tallmc.mala(0.01), draws=50, store=folder + "/run")
    >>> write_report(folder + "/run", folder + "/report.html", posterior=posterior)
    """
    opened = open_store(store)
    if not opened.manifest.n_draws:
        raise StoreError(opened.path, "have at least one draw", "none yet", "Go on with `tallmc resume`.")
    if posterior is not None and not same_posterior(fingerprint(posterior), opened.setup.content["posterior"]):
        raise StoreError(opened.path, "be reported with the posterior it was started with", "another")
    with blaming(opened.path, "say what was run"):
        page = render(make_content(opened, posterior, parameters))
    try:
        Path(out).write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidInput("--out", "be a file that can be written", f"{out}: {error.strerror}") from None
