"""The figures of Putcha, Nemeth and Fearnhead (2023).

*Preferential subsampling for stochastic gradient Langevin dynamics.* Each figure has a variant
*as run*, which does what the authors' code does, and a variant *as meant*, which does what the
paper says. They differ:

    as run      one unconverged Adam mode per chain; no floor under the weights; KSD from the
                sampler's own gradients of the previous step with flipped sign; SGLD starts at 0,
                the other methods at the mode
    as meant    one converged mode, where all methods start; weights by eqs. 11 and 16; KSD from
                exact gradients with the right sign

Target values are the authors', read off their notebooks and figures.
"""
