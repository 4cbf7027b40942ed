"""One environment per peer, with a process that takes steps on request."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".bench"
_OLD_JAX = ("jax==0.4.23", "jaxlib==0.4.23", "numpy<2", "scipy<1.13")


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library to compare with."""

    module: str
    """The module in this folder that defines its steps."""
    name: str
    requirements: tuple[str, ...]
    """The packages that pip installs."""

    def python(self) -> Path:
        """The interpreter of the peer's environment, which is created if it does not exist."""
        folder = FOLDER / self.module
        ready = folder / ".installed"
        if not ready.exists():
            print(f"installing {', '.join(self.requirements)}", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            install = [str(folder / "bin" / "pip"), "install", "--quiet", *self.requirements]
            subprocess.run(install, check=True, stderr=subprocess.PIPE, text=True)
            ready.touch()
        return folder / "bin" / "python"


PEERS = (
    Peer("sgmcmcjax_sgld", "SGMCMCJax 0.2.13 (jax 0.4.23)", ("sgmcmcjax==0.2.13", *_OLD_JAX)),
    Peer("jax_sgmc_sgld", "jax-sgmc 0.1.5 (jax 0.4.23)", ("jax-sgmc==0.1.5", *_OLD_JAX)),
    Peer(
        "posteriors_sgld",
        "posteriors 0.1.3 (torch 2.13.0)",
        ("posteriors==0.1.3", "torch==2.13.0", "numpy"),
    ),
)


def worker(
    peer: Peer, data: Path, size: int, steps: int, step_size: float
) -> Callable[[], None] | None:
    """A call that takes `steps` steps in the peer's own process.

    If the peer cannot be installed or fails, prints the reason and returns None.
    """
    try:
        arguments = [
            peer.python(),
            Path(__file__).with_name("worker.py"),
            peer.module,
            data,
            size,
            steps,
            step_size,
        ]
    except (subprocess.CalledProcessError, OSError) as error:
        reason = _last_line(getattr(error, "stderr", "") or str(error))
        print(f"{peer.name} is skipped because it could not be installed: {reason}")
        return None
    pipe, command = subprocess.PIPE, [str(argument) for argument in arguments]
    # tallmc sets XLA_FLAGS for itself; the peer must not inherit them.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    to, back = process.stdin, process.stdout
    if back.readline() != "ready\n":
        reason = _last_line(process.communicate()[1])
        print(f"{peer.name} is skipped because it failed: {reason}", file=sys.stderr)
        return None

    def take_steps() -> None:
        to.write("go\n")
        to.flush()
        if back.readline() != "done\n":
            raise RuntimeError(f"the process of {peer.name} stopped")

    return take_steps


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
