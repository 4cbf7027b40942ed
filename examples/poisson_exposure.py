"""Poisson regression with exposure.

Insurance claims are counted over policies that were observed for different times. The expected
count of a policy is its exposure times a rate, and the rate depends on the age of the driver and on
the mileage. `exposure="years"` adds the logarithm of the exposure to the linear predictor, so the
coefficients describe claims per year.

The picture shows the rate per year over age, with the 90 % interval of the posterior. The points
are claims divided by years in groups of similar age.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import tallmc

N_ROWS = 100_000  # reduced: 4_000

rng = np.random.default_rng(0)
table = pd.DataFrame(
    {
        "age": rng.uniform(18, 80, N_ROWS),
        "mileage": rng.gamma(4.0, 3.0, N_ROWS),  # thousand km per year
        "years": rng.uniform(0.1, 3.0, N_ROWS),
    }
)
decades = (table.age - 50) / 10
rate = np.exp(-2.5 - 0.1 * decades + 0.08 * decades**2 + 0.03 * table.mileage)
table["claims"] = rng.poisson(table.years * rate)

formula = "claims ~ age + I(age**2) + mileage"
draws = tallmc.fit(formula, table, family="poisson", exposure="years", seed=0)
print(draws.summary().iloc[:, :4])
print(draws.report.verdict, "-", draws.report.meaning)

ages = np.linspace(18, 80, 100)
new = pd.DataFrame({"age": ages, "mileage": table.mileage.mean(), "years": 1.0})
predicted = draws.predict(new)
totals = {"age": "mean", "claims": "sum", "years": "sum"}
groups = table.groupby(pd.cut(table.age, 16), observed=True).agg(totals)

fig, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
axis.fill_between(ages, predicted.low, predicted.high, alpha=0.4, label="posterior, 90 % interval")
axis.plot(ages, predicted.mean)
axis.plot(groups.age, groups.claims / groups.years, "k.", label="claims / years of age groups")
axis.set(xlabel="age (years)", ylabel="claims per year", ylim=0)
axis.set_title(f"Claims per year from {N_ROWS:,} policies with different exposures")
axis.legend()
fig.savefig("poisson_exposure.png", dpi=120)
