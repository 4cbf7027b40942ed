"""Putcha, Nemeth and Fearnhead (2023), *Preferential subsampling for stochastic gradient Langevin dynamics*: its figures.

Each figure comes *as run*, with what the authors' code does, and *as meant*, with what the paper says. They differ:

    as run      a mode a chain, from Adam and unconverged; no floor under the weights; the KSD from the sampler's own gradients,
                those of the step before, with their sign flipped; SGLD starts at 0, the others at the mode
    as meant    one mode, converged, and all start there; weights by eqs. 11 and 16; the KSD from exact gradients, right sign

Numbers called targets are the authors', read off their notebooks and figures.
"""
