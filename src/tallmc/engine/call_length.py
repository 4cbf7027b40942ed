"""How many steps the next call of the compiled loop runs.

Every call draws the randomness of whole blocks of K steps, also of steps that it does not run. A
call of s steps in b blocks takes b·D + s·S seconds. D, the time to draw a block for all chains, is
measured beforehand; S follows from each call. A call lasts half a second, or longer if it would
otherwise spend more than a fifth of its time on draws, as with thousands of chains. A call that
runs past the end of a block ends with a block, so that no block is drawn twice.
"""

from __future__ import annotations

import math

SECONDS_PER_CALL = 0.5
_FIRST_STEPS = 1
_LARGEST_GROWTH = 8
_MOST_DRAWING = 0.2  # share of a call that is spent on drawing a block


class CallLength:
    """Chooses the number of steps per call from the time that earlier calls took.

    **Arguments:**

    - `block`: K.
    - `draw_seconds`: D.

    >>> length = CallLength(block=512, draw_seconds=1.0)
    >>> length.learn(first=0, done=1, took=1.001)
    >>> length.next(1)
    8
    """

    def __init__(self, block: int, draw_seconds: float):
        self.block, self.draw_seconds = block, draw_seconds
        self.steps = _FIRST_STEPS

    def next(self, first: int) -> int:
        """Steps of a call that begins with step `first`."""
        to_end = self.block - first % self.block
        if self.steps < to_end:
            return self.steps
        return to_end + (self.steps - to_end) // self.block * self.block

    def learn(self, first: int, done: int, took: float) -> None:
        """Take account of a call that ran `done` steps, from step `first`, in `took` seconds."""
        n_blocks = (first + done - 1) // self.block - first // self.block + 1
        per_step = max(took - n_blocks * self.draw_seconds, 0.01 * took, 1e-9) / done
        per_block = self.draw_seconds + self.block * per_step
        seconds = max(SECONDS_PER_CALL, self.draw_seconds / _MOST_DRAWING)
        if per_block <= seconds:
            steps = self.block * int(seconds / per_block)
        else:
            pieces = math.ceil(self.block * per_step / (seconds - self.draw_seconds))
            steps = math.ceil(self.block / pieces)
        self.steps = min(steps, _LARGEST_GROWTH * done)
