"""Named methods whose accept steps or rates read a few rows."""

from __future__ import annotations

from .firefly import Taylor
from .method import StepSize
from .subsampled import Austerity, PseudoMarginal, SubsampledMH
from .zig_zag import ZigZag


def subsampled_mh(
    step_size: StepSize = 1.0,
    *,
    proposal: str = "pcn",
    order: int = 2,
    caps: float = 1.0,
    bound: Taylor | None = None,
) -> SubsampledMH:
    """Metropolis–Hastings with scalable subsampling: exact, from a Poisson number of rows.

    For logistic, probit, binomial, Poisson, linear, softmax, Student-t and Gamma regression, linear
    regression of unknown scale, and any model with a bound of yours.

    **Arguments:**

    - `step_size`: h. Proposals "pcn" with h = 1 are independent of the position.
    - `proposal`: "pcn", "langevin" or "random-walk".
    - `order`: the order of the surrogate, 0 to 3. Order 3 takes d³ numbers and reads fewest rows.
    - `caps`: the fraction of the bound on each row's change that is used.
    - `bound`: a `Taylor(...)` with your bound on the Taylor remainders of the rows, for any model.
      Needs order 2 and double precision.

    **Returns:** a `SubsampledMH`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.subsampled_mh(order=3).exact
    True
    """
    return SubsampledMH(step_size=step_size, proposal=proposal, order=order, caps=caps, bound=bound)


def tuna_mh(step_size: StepSize, *, chi: float = 1e-3, order: int = 0) -> SubsampledMH:
    """TunaMH: exact, a random walk that decides from minibatches; χ trades rows for acceptance.

    **Arguments:**

    - `step_size`: h of the random walk, in posterior variances.
    - `chi`: χ; the larger, the more rows and the higher the acceptance rate.
    - `order`: the order of the surrogate. The authors have none, which is order 0.

    **Returns:** a `SubsampledMH`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.tuna_mh(0.01).rule
    'tuna'
    """
    return SubsampledMH(
        step_size=step_size, proposal="random-walk", order=order, rule="tuna", chi=chi
    )


def smh(step_size: StepSize = 1.0, *, order: int = 2) -> SubsampledMH:
    """Scalable Metropolis–Hastings: exact, with one acceptance factor per row.

    **Arguments:**

    - `step_size`: h. Proposals with h = 1 are independent of the position.
    - `order`: the order of the surrogate, 1 or 2 in the paper.

    **Returns:** a `SubsampledMH`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.smh(order=1).rule
    'factorised'
    """
    return SubsampledMH(step_size=step_size, order=order, rule="factorised")


def zig_zag(step_size: float, order: int = 2) -> ZigZag:
    """Zig-zag process with subsampling and control variates: exact, reads a few rows.

    **Arguments:**

    - `step_size`: the time along the path between draws, a number.
    - `order`: the order of the control variates: 1, as in the paper, or 2, which reads fewer rows.

    **Returns:** a `ZigZag`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.zig_zag(step_size=2.0).order
    2
    """
    return ZigZag(step_size=step_size, order=order)


def austerity_mh(
    step_size: StepSize, epsilon: float = 0.05, batch: int = 500, order: int = 0
) -> Austerity:
    """Random-walk Metropolis by sequential tests: approximate, reads some rows.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `epsilon`: the probability of an error at each look of a test.
    - `batch`: rows read between looks.
    - `order`: the order of the expansions that rows are compared with; 0 as in the paper.

    **Returns:** an `Austerity`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.austerity_mh(step_size=0.5).exact
    False
    """
    return Austerity(step_size=step_size, epsilon=epsilon, batch=batch, order=order)


def pseudo_marginal_mh(
    step_size: StepSize = 1.0, size: int = 100, blocks: int = 20, *, proposal: str = "pcn"
) -> PseudoMarginal:
    """Block pseudo-marginal Metropolis–Hastings: approximate, reads a fixed number of rows.

    **Arguments:**

    - `step_size`: h. Proposals "pcn" with h = 1 are independent of the position.
    - `size`: m, the rows that estimate the likelihood. The bias falls as 1/m².
    - `blocks`: G; a proposal redraws about m/G of the rows.
    - `proposal`: "pcn", "langevin" or "random-walk".

    **Returns:** a `PseudoMarginal`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.pseudo_marginal_mh(size=50, blocks=10).exact
    False
    """
    return PseudoMarginal(step_size=step_size, size=size, blocks=blocks, proposal=proposal)
