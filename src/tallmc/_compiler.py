"""What is asked of XLA on CPUs: a small loop compiled as one function.

XLA runs the body of a loop as a list of kernels, each of which costs a fifth of a microsecond to start; a step of a few dozen
rows spends more on that than on its rows. Loops that touch little memory it can compile whole, if told what little is. It hears
that from the environment only, and only before JAX first looks for devices; so `import tallmc` says it, unless `XLA_FLAGS` has
options of this kind already. Nothing else changes but the last bits of results.
"""

from __future__ import annotations

import functools
import os

import jax
import jax.numpy as jnp

_OPTION = "xla_backend_extra_options"
_SMALL_LOOP_BYTES = 10**6
"""What a turn of a step loop may touch; a turn of a pass over all rows, which gains from several threads, touches more."""


def ask_for_whole_loops() -> None:
    """Before JAX first looks for devices; later it is in vain."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _OPTION not in flags:
        asked = f"--{_OPTION}=xla_cpu_small_while_loop_byte_threshold={_SMALL_LOOP_BYTES}"
        os.environ["XLA_FLAGS"] = f"{flags} {asked}".strip()


@functools.cache
def loops_are_whole() -> bool:
    """Whether XLA does as asked: not on a GPU, nor where JAX was at work before tallmc was imported."""
    if jax.default_backend() != "cpu":
        return False
    loop = jax.jit(lambda turns, x: jax.lax.fori_loop(0, turns, lambda _, x: jnp.sin(x), x))
    return "xla_cpu_small_call" in (loop.lower(3, jnp.zeros(1024)).compile().as_text() or "")
