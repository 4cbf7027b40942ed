"""What a plain install must do: run in an empty folder, by an environment without extras.

`make dist` installs the wheel into an empty environment and runs this script there.
"""

import importlib.util
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np

import tallmc


def check(what: str, holds: bool) -> None:
    print(f"{'ok' if holds else 'FAILED'}: {what}", flush=True)
    if not holds:
        sys.exit(1)


def main() -> None:
    check("not the source tree", "site-packages" in str(Path(tallmc.__file__)))
    check("typed", files("tallmc").joinpath("py.typed").is_file())
    extras = [
        "numpyro",
        "pymc",
        "dask",
        "sklearn",
        "blackjax",
        "arviz_plots",
        "matplotlib",
        "zarr",
        "cloudpickle",
    ]
    check("no extras", not any(map(importlib.util.find_spec, extras)))

    rng = np.random.default_rng(0)
    age, group = rng.uniform(20, 80, 20_000), rng.choice(["a", "b"], 20_000)
    logit = -2 + 0.04 * age + 0.5 * (group == "b")
    clicked = rng.random(20_000) < 1 / (1 + np.exp(-logit))

    X = np.column_stack([np.ones(20_000), age / 50])
    posterior = tallmc.models.logistic_regression(X, clicked, prior_variance=10.0)
    draws = tallmc.sample(posterior, seed=0, store="run")
    check("sample", draws.report.trusted and "rhat" in str(draws.summary()))
    draws.to_datatree()
    draws.save("draws.nc")
    check("save and load", np.array_equal(tallmc.load("draws.nc").positions, draws.positions))
    check("cite", "@software{tallmc" in tallmc.cite(draws))

    table = {"age": age, "group": group, "clicked": clicked}
    fitted = tallmc.fit("clicked ~ age + group", table, family="bernoulli", seed=0)
    check("fit a table", abs(fitted.values["age"].mean() - 0.04) < 5 * fitted.values["age"].std())

    lines = [
        "age,group,clicked",
        *(f"{a:.3f},{g},{int(c)}" for a, g, c in zip(*table.values(), strict=True)),
    ]
    Path("clicks.csv").write_text("\n".join(lines), encoding="utf-8")
    command = str(Path(sys.executable).with_name("tallmc"))
    for arguments in (
        ["--version"],
        ["methods", "sgld_cv_ps"],
        ["fit", "clicks.csv", "--response", "clicked", "--family", "bernoulli", "-o", "fit"],
        ["predict", "fit", "clicks.csv", "-o", "predictions.csv"],
        ["report", "run", "-o", "report.html"],
        ["demo", "--rows", "20000", "--columns", "3", "-o", "demo"],
    ):
        done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr)
        check(f"tallmc {' '.join(arguments)}", done.returncode == 0)


if __name__ == "__main__":
    main()
