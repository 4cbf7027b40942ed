"""How many steps to run until the host looks at the run again: about half a second of them.

The number of steps is a whole number of blocks if it is more than one block, so that few calls are
shorter than a block.
"""

from __future__ import annotations

SECONDS_PER_CALL = 0.5
_FIRST_STEPS = 8
_LARGEST_GROWTH = 8


class CallLength:
    """Chooses the number of steps from the time that earlier steps took.

    **Arguments:**

    - `block`: K, the number of steps of a block.

    >>> length = CallLength(block=512)
    >>> length.learn(done=8, took=0.008)
    >>> length.next(8)
    64
    """

    def __init__(self, block: int):
        self.block = block
        self.steps = _FIRST_STEPS

    def next(self, first: int) -> int:
        """Steps to run from step `first` on."""
        to_end = self.block - first % self.block
        if self.steps < to_end:
            return self.steps
        return to_end + (self.steps - to_end) // self.block * self.block

    def learn(self, done: int, took: float) -> None:
        """Take account of `done` steps that took `took` seconds."""
        steps = max(1, int(done * SECONDS_PER_CALL / max(took, 1e-9)))
        self.steps = min(steps, _LARGEST_GROWTH * done)
