"""Long series as windows with buffers: hidden Markov and state-space models."""

from .hidden_markov import hidden_markov
from .particles import nonlinear_state_space
from .state_space import state_space
from .windows import BufferError, buffer_error, hidden_states

__all__ = [
    "BufferError",
    "buffer_error",
    "hidden_markov",
    "hidden_states",
    "nonlinear_state_space",
    "state_space",
]
