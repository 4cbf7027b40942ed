"""The paper's step size h in the library's units. Every module of this paper converts h here.

The paper's h is that of θ' = θ − h∇V + √(2h) ξ and of Euler steps of length h. The library's step
size ε is 2h in both cases.
"""

from __future__ import annotations


def library_step(h: float) -> float:
    """The library's ε for the paper's h."""
    return 2.0 * h
