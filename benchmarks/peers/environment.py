"""An environment for each peer, and a process in it that takes steps when it is told to."""

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
    """A library, and what pip is asked for. Its steps are in the module of the same name beside this file."""

    module: str
    name: str
    requirements: tuple[str, ...]

    def python(self) -> Path:
        """The interpreter of its environment, which is made when there is none."""
        folder = FOLDER / self.module
        ready = folder / ".installed"
        if not ready.exists():
            print(f"installing {', '.join(self.requirements)}", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            install = [folder / "bin" / "pip", "install", "--quiet", *self.requirements]
            subprocess.run(install, check=True, stderr=subprocess.PIPE, text=True)
            ready.touch()
        return folder / "bin" / "python"


PEERS = (
    Peer("sgmcmcjax_sgld", "SGMCMCJax 0.2.13 (jax 0.4.23)", ("sgmcmcjax==0.2.13", *_OLD_JAX)),
    Peer("jax_sgmc_sgld", "jax-sgmc 0.1.5 (jax 0.4.23)", ("jax-sgmc==0.1.5", *_OLD_JAX)),
    Peer("posteriors_sgld", "posteriors 0.1.3 (torch 2.13.0)", ("posteriors==0.1.3", "torch==2.13.0", "numpy")),
)


def worker(peer: Peer, data: Path, size: int, steps: int, step_size: float) -> Callable[[], None] | None:
    """A call that takes `steps` steps in the peer's own process; None, and a line that says why, where it cannot be had."""
    try:
        arguments = [peer.python(), Path(__file__).with_name("worker.py"), peer.module, data, size, steps, step_size]
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{peer.name} is left out, it could not be installed: {_last_line(getattr(error, 'stderr', '') or str(error))}")
        return None
    pipe, command = subprocess.PIPE, [str(argument) for argument in arguments]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # what tallmc asked for itself
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    to, back = process.stdin, process.stdout
    if back.readline() != "ready\n":
        print(f"{peer.name} is left out, it failed: {_last_line(process.communicate()[1])}", file=sys.stderr)
        return None

    def take_steps() -> None:
        to.write("go\n")
        to.flush()
        if back.readline() != "done\n":
            raise RuntimeError(f"{peer.name} died")

    return take_steps


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
