"""Topics that few need, each complete in itself: model, kernel, method and diagnostic together.

    austerity        Metropolis–Hastings by sequential tests
    bouncy           the bouncy particle sampler with subsampling
    confidence       Metropolis–Hastings by confidence bounds
    consensus        shards sampled apart, their draws combined
    constrained      Langevin dynamics in boxes, half-spaces and by mirror maps
    diverse_batches  batches by determinantal point processes and Poisson disks
    graph_stein      the graph Stein discrepancy
    groups           parameters of many groups, of which a step moves a few
    networks         communities in networks
    poisson_gibbs    Gibbs sampling of Potts models from a few neighbours
    proximal         Langevin dynamics for priors with kinks
    pseudo_marginal  block pseudo-marginal Metropolis–Hastings
    recipe           the (D, Q, Γ) recipe of all stochastic-gradient dynamics
    series           hidden Markov and state-space models of long series
    simplex          points on simplices, topics of documents
    zig_zag          the zig-zag process with subsampling

A topic is imported on first access. The product never imports a topic.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import austerity as austerity
    from . import bouncy as bouncy
    from . import confidence as confidence
    from . import consensus as consensus
    from . import constrained as constrained
    from . import diverse_batches as diverse_batches
    from . import graph_stein as graph_stein
    from . import groups as groups
    from . import networks as networks
    from . import poisson_gibbs as poisson_gibbs
    from . import proximal as proximal
    from . import pseudo_marginal as pseudo_marginal
    from . import recipe as recipe
    from . import series as series
    from . import simplex as simplex
    from . import zig_zag as zig_zag

__all__ = [topic.name for topic in pkgutil.iter_modules(__path__)]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f".{name}", __name__)
