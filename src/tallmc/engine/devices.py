"""The devices on which the chains of a run advance.

`sample` chooses them for the whole run: pilot chains, chains and checks. `Chains` finds the choice
through a context variable, because the methods between the two know nothing of it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import jax

from ..core.errors import InvalidInput, check_int

_chosen: contextvars.ContextVar[tuple[jax.Device, ...] | None] = contextvars.ContextVar(
    "devices", default=None
)


def chosen_devices() -> tuple[jax.Device, ...] | None:
    """The devices of the run; None if JAX chooses."""
    return _chosen.get()


@contextlib.contextmanager
def chains_on(devices: int | Sequence[jax.Device] | None) -> Iterator[None]:
    """Run the chains of the block on these devices; None leaves the choice to JAX.

    **Raises:** `InvalidInput` if there are no such devices.

    >>> with chains_on(1):
    ...     chosen_devices() == tuple(jax.local_devices()[:1])
    True
    """
    token = _chosen.set(None if devices is None else _checked(devices))
    try:
        yield
    finally:
        _chosen.reset(token)


def _checked(devices: int | Sequence[jax.Device]) -> tuple[jax.Device, ...]:
    local = jax.local_devices()
    if not isinstance(devices, Sequence) or isinstance(devices, str):
        name = f"number of local {local[0].platform} devices"
        cure = "jax.local_devices() lists them."
        return tuple(
            local[: check_int("devices", devices, 1, len(local), high_name=name, cure=cure)]
        )
    if not devices or len(set(devices)) < len(devices) or not set(devices) <= set(local):
        raise InvalidInput("devices", "be different devices of jax.local_devices()", devices)
    return tuple(devices)
