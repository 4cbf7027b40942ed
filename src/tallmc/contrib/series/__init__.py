"""Long series as windows with buffers: hidden Markov and linear-Gaussian state-space models."""

from .diagnostics import BufferError, buffer_error, hidden_states
from .hidden_markov import hidden_markov
from .state_space import state_space

__all__ = ["BufferError", "buffer_error", "hidden_markov", "hidden_states", "state_space"]
