"""Sampling the communities of a network from a few nodes and pairs per mini-batch.

Li, Ahn and Welling (2016), for `tallmc.models.mixed_membership`. A mini-batch draws M nodes and,
for each node, links and non-links (`pairs.py`). It estimates the counts of communities that are
expected given the current memberships (`kernel.py`), and moves the weights of the M nodes and all
strengths by a transition of gamma variables (`methods/simplex/transitions.py`):

    φ_a ← move(φ_a; α, n̂_a),   E n̂_a = E[Σ_b 1[z_ab = k] | y, π, β],   a among M of N nodes
    θ_k ← move(θ_k; η, m̂_k),   E m̂_ki = E[Σ_{a<b} 1[z_ab = z_ba = k, y_ab = i] | y, π, β]

SGRLD is the transition of the paper, SCIR (Baker et al., 2018) an alternative without
discretisation error near zero. Here the M nodes alone move. The authors also move the partners of
their nodes, each with a fresh set of partners, which takes as many pairs per moved node.

Both are biased: the noise of n̂ widens the draws in proportion to the step size, and SGRLD has a
discretisation error. As the step size vanishes, SGRLD leaves the posterior invariant. So does SCIR
for memberships, since the total of the counts of a node is constant. The total m̂_k. of a community
changes with β_k, and SCIR runs β_k at a speed in proportion to 1/θ_k., so the law of β_k is about
its posterior times η. + m_k.(β_k). This tilt shifts β_k by a share of the order of 1/m_k. of its
value; with four nodes it was 0.02 posterior sds (`tests/test_network.py`).

Cost: O(K) per pair, and at most M times the numbers of links and of non-links pairs per mini-batch,
whatever the number of nodes. A step consists of N/M mini-batches, about one move per node.
"""

from __future__ import annotations

import dataclasses

from ...anchor.anchor import Anchor, AnchorLevel
from ...core.errors import InvalidInput, check_int
from ...dynamics.base import Curvature, Suggestion
from ...engine.kernel import BoundKernel
from ...models.densities import Batched, DensityModel
from ...models.mixed_membership import BlockLikelihood, BlockPrior
from ...models.posterior import AbstractPosterior, check_posterior
from ...rows.base import RowAccess
from ...schedule import AbstractSchedule, as_schedule, in_precision
from ..base import AbstractMethod, PreparedMethod, RunDefaults, check_row_access
from ..simplex.transitions import AbstractGammaTransition, CoxIngersollRoss, ExpandedMean
from .kernel import CommunityKernel
from .pairs import SCHEMES, PairSelection

_TRANSITIONS: dict[str, type[AbstractGammaTransition]] = {
    "sgrld": ExpandedMean,
    "scir": CoxIngersollRoss,
}
_SUGGESTED_STEP = {"sgrld": 0.003, "scir": 0.3}
_MOST_KEPT_FLOATS = 2**26
"""Numbers of all draws that are kept in memory by default."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommunitySampler(AbstractMethod):
    """Moves the memberships of a few nodes per mini-batch; for `tallmc.models.mixed_membership`.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `process`: "scir" or "sgrld".
    - `nodes`: M, the nodes per mini-batch, or all if the network has fewer.
    - `links`, `non_links`: the most links and non-links that are read per node.
    - `scheme`: "stratified", "one stratum" (as in the paper) or "uniform".
    - `batches`: mini-batches per step. None for N/M, so that a step moves each node about once.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.CommunitySampler(step_size=0.1, process="scir").axes["dynamics"]
    'CoxIngersollRoss'
    """

    step_size: float | AbstractSchedule
    process: str = "scir"
    nodes: int = 32
    links: int = 32
    non_links: int = 32
    scheme: str = "stratified"
    batches: int | None = None

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        for parameter, value, known in (
            ("process", self.process, tuple(_TRANSITIONS)),
            ("scheme", self.scheme, SCHEMES),
        ):
            if value not in known:
                raise InvalidInput(parameter, f"be one of {', '.join(map(repr, known))}", value)
        for parameter in ("nodes", "links", "non_links"):
            check_int(parameter, getattr(self, parameter), 1)
        if self.batches is not None:
            check_int("batches", self.batches, 1)

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.NOTHING

    @property
    def row_access(self) -> RowAccess:
        return RowAccess.TAKE

    def defaults(self, dim: int) -> RunDefaults:
        draws = min(1000, max(25, _MOST_KEPT_FLOATS // (4 * dim)))
        return RunDefaults(chains=4, draws=draws, ess=None)

    @property
    def has_accept_step(self) -> bool:
        return False

    @property
    def exact(self) -> bool:
        return False

    @property
    def unseen_by_pairs(self) -> None:
        return None

    @property
    def axes(self) -> dict[str, str]:
        return {
            "dynamics": _TRANSITIONS[self.process].__name__,
            "gradient": "expected counts",
            "subsample": f"nodes and pairs, {self.scheme}",
            "size": "per node",
        }

    def suggest(self, curvature: Curvature) -> Suggestion:
        rule = "a share of the time in which the weights of a node relax"
        return Suggestion(_SUGGESTED_STEP[self.process], rule, 1.0, 1.0)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Check that the posterior is that of a network."""
        check_posterior(posterior)
        model, likelihood, prior = _block_model(posterior)
        check_row_access(self, posterior)
        n_nodes, longest = posterior.n_rows, posterior.data.links.shape[1]
        touched = min(self.nodes, n_nodes)
        kernel = CommunityKernel(
            block_model=model,
            likelihood=likelihood,
            prior=prior,
            selection=PairSelection(
                n_nodes,
                touched,
                min(self.links, longest),
                min(self.non_links, n_nodes - 1),
                self.scheme,
            ),
            transition=_TRANSITIONS[self.process](),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=posterior.init,
            batches=-(-n_nodes // touched) if self.batches is None else self.batches,
            starts_at_counts=self.process == "scir",
        )
        return PreparedMethod(BoundKernel(kernel, posterior), None, 0)


def _block_model(
    posterior: AbstractPosterior,
) -> tuple[DensityModel, BlockLikelihood, BlockPrior]:
    model = posterior.model
    if isinstance(model, DensityModel) and isinstance(model.log_likelihood, Batched):
        likelihood, prior = model.log_likelihood.function, model.log_prior
        if isinstance(likelihood, BlockLikelihood) and isinstance(prior, BlockPrior):
            return model, likelihood, prior
    cure = "For other models see tallmc.METHODS."
    rule = "be a network of tallmc.models.mixed_membership for this method"
    raise InvalidInput("posterior", rule, type(model).__name__, cure)
