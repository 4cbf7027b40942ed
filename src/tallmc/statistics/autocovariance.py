"""Autocovariances of chains, by the fast Fourier transform."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def mean_autocovariances(centred: Float[np.ndarray, "chains n"]) -> Float[np.ndarray, " n"]:
    """Autocovariances at every lag, averaged over chains whose means have been subtracted.

    Sums are divided by n at every lag. Only the mean spectrum is transformed back.
    """
    n = centred.shape[1]
    from scipy.fft import irfft, next_fast_len, rfft  # a slow import

    padded = next_fast_len(2 * n, real=True)
    transformed = rfft(centred, padded, axis=1)
    spectrum = np.einsum("ij,ij->j", transformed.real, transformed.real)
    spectrum += np.einsum("ij,ij->j", transformed.imag, transformed.imag)
    return irfft(spectrum, padded)[:n] / centred.size
