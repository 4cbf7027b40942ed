"""The engine: the kernel, the compiled loop, and the host side of a run."""
