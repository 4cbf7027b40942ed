"""XLA options: compile quickly, and on CPUs compile a small loop as one function.

XLA runs a loop body as a list of kernels. Each kernel costs a fifth of a microsecond to start, and
a step of a few dozen rows spends more time on these starts than on its rows. XLA can compile a
loop as one function if the loop touches little memory; the option sets that threshold. XLA reads
the option from the environment, before JAX initialises a backend. `import tallmc` therefore sets
it, unless `XLA_FLAGS` already has options of this kind. The option changes only the last
bits of results.
"""

from __future__ import annotations

import functools
import os

import jax
import jax.numpy as jnp

Options = dict[str, bool | int | str]
QUICKLY: Options = {
    "xla_backend_optimization_level": 1,
    "xla_gpu_autotune_level": 0,
}
"""Options for `jax.jit`. The programs of this library are small, and as fast with fewer passes of
LLVM, which take half of the time of a compilation. On a GPU, no alternatives are timed."""

_XLA_OPTION = "xla_backend_extra_options"
_SMALL_LOOP_BYTES = 10**6
"""The threshold, in bytes touched per iteration. Step loops stay below it and are compiled as one
function. Passes over all rows exceed it and keep several threads."""


def ask_for_whole_loops() -> None:
    """Set the option. Must run before JAX initialises a backend: XLA_FLAGS is read once."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _XLA_OPTION not in flags:
        option = f"--{_XLA_OPTION}=xla_cpu_small_while_loop_byte_threshold={_SMALL_LOOP_BYTES}"
        os.environ["XLA_FLAGS"] = f"{flags} {option}".strip()


@functools.cache
def loops_are_whole() -> bool:
    """Whether XLA compiles small loops as one function.

    False on GPUs, and if JAX initialised a backend before the import of tallmc.
    """
    if jax.default_backend() != "cpu":
        return False
    loop = jax.jit(lambda trips, x: jax.lax.fori_loop(0, trips, lambda _, x: jnp.sin(x), x))
    return "xla_cpu_small_call" in (loop.lower(3, jnp.zeros(1024)).compile().as_text() or "")
