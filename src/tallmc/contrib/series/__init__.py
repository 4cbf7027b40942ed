"""Long series as windows with buffers: hidden Markov and state-space models."""

from .diagnostics import BufferError, buffer_error, hidden_states
from .hidden_markov import hidden_markov
from .particles import nonlinear_state_space
from .state_space import state_space

__all__ = [
    "BufferError",
    "buffer_error",
    "hidden_markov",
    "hidden_states",
    "nonlinear_state_space",
    "state_space",
]
