"""Named methods for communities in networks."""

from __future__ import annotations

from .method import StepSize
from .network import CommunitySampler


def mmsb_scir(
    step_size: StepSize,
    nodes: int = 32,
    links: int = 32,
    non_links: int = 32,
    *,
    scheme: str = "stratified",
) -> CommunitySampler:
    """Communities of a network by the Cox–Ingersoll–Ross process, a few nodes at a time.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule. Steps near 1 are stable.
    - `nodes`: the nodes per mini-batch.
    - `links`, `non_links`: the most links and non-links that are read per node.
    - `scheme`: "stratified", "one stratum" (as in the paper) or "uniform".

    **Returns:** a `CommunitySampler`, for `tallmc.models.mixed_membership`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.mmsb_scir(0.5).process
    'scir'
    """
    return CommunitySampler(
        step_size=step_size,
        process="scir",
        nodes=nodes,
        links=links,
        non_links=non_links,
        scheme=scheme,
    )


def mmsb_sgrld(
    step_size: StepSize,
    nodes: int = 32,
    links: int = 32,
    non_links: int = 32,
    *,
    scheme: str = "stratified",
) -> CommunitySampler:
    """Communities of a network by SGRLD in the expanded mean, a few nodes at a time.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule; about 1/N for N nodes.
    - `nodes`: the nodes per mini-batch.
    - `links`, `non_links`: the most links and non-links that are read per node.
    - `scheme`: "stratified", "one stratum" (as in the paper) or "uniform".

    **Returns:** a `CommunitySampler`, for `tallmc.models.mixed_membership`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.mmsb_sgrld(0.01).process
    'sgrld'
    """
    return CommunitySampler(
        step_size=step_size,
        process="sgrld",
        nodes=nodes,
        links=links,
        non_links=non_links,
        scheme=scheme,
    )
