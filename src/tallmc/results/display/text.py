"""Format progress as short text."""

from __future__ import annotations

from ...engine.progress import Progress


def seconds_shown(seconds: float | None) -> str:
    """Format a duration.

    >>> seconds_shown(5.2), seconds_shown(75), seconds_shown(7300), seconds_shown(None)
    ('5 s', '1:15', '2:01:40', '?')
    """
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return (
        f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
    )


def goal_shown(now: Progress) -> str:
    """Format the draws completed and the draws wanted."""
    if now.wanted_draws is not None:
        return f"{now.draws:,} of {now.wanted_draws:,} draws"
    return f"{now.draws:,} draws"


def ess_shown(now: Progress) -> str:
    """Format the effective sample size and its goal."""
    wanted = "" if now.wanted_ess is None else f" of {now.wanted_ess:,.0f}"
    return f"ESS {'?' if now.ess is None else format(now.ess, ',.0f')}{wanted}"


def time_shown(now: Progress) -> str:
    """Format the time gone and left, or how the run ended."""
    if now.ended:
        return f"{now.stage} after {seconds_shown(now.seconds)}"
    return f"{seconds_shown(now.seconds)} gone, {seconds_shown(now.seconds_left)} left"


def preparation_shown(stage: str, seconds: float) -> str:
    """Format a stage of the preparation."""
    return f"{stage} · {seconds_shown(seconds)} gone"


def share_done(now: Progress) -> float:
    """The share of the run that is done, between 0 and 1."""
    if now.wanted_draws is not None:
        return min(1.0, now.step / max(now.n_steps, 1))
    return min(1.0, (now.ess or 0.0) / now.wanted_ess) if now.wanted_ess else 0.0


def size_shown(rows: float) -> str:
    """Format a mean number of rows per step, which may be far below one.

    >>> size_shown(1234.0), size_shown(0.0576)
    ('1,234', '0.058')
    """
    return f"{rows:,.0f}" if rows >= 10 else f"{rows:.2g}"


def line(now: Progress) -> str:
    """Format all facts in one line, for logs."""
    if now.is_preparing:
        return preparation_shown(now.stage, now.seconds)
    sizes = sum(chain.batch_size for chain in now.chains) / len(now.chains)
    noises = [chain.grad_noise for chain in now.chains if chain.grad_noise is not None]
    failed = sum(chain.outcome != 0 for chain in now.chains)
    parts = [
        goal_shown(now),
        ess_shown(now),
        f"{now.steps_per_second:,.0f} steps/s",
        f"{now.n_row_evals:,} rows ({now.passes:.3g} passes)",
        f"step {now.chains[0].step_size:.3g}",
        f"{size_shown(sizes)} rows per step",
        *([f"noise {sum(noises) / len(noises):.3g}"] if noises else []),
        *([f"{failed} of {len(now.chains)} chains failed"] if failed else []),
        time_shown(now),
    ]
    return " · ".join(parts)


def bar(now: Progress, width: int = 20) -> str:
    """Draw a progress bar in the style of tqdm.

    47%|█████████▍          | 940 of 2,000 draws [...]
    """
    eighths = round(share_done(now) * width * 8)
    full, rest = divmod(eighths, 8)
    drawn = ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)
    return f"{share_done(now):4.0%}|{drawn}| {line(now)}"
