"""From a data frame with categories.

`tallmc.fit` takes a formula and a data frame. Text columns and pandas categories become one
coefficient per level except the first, the baseline. Numbers are standardised for the sampler and
shown in their own units.

The picture shows predictions for new rows, also a data frame: the mean price, whose interval is
what is unknown about the coefficients, and the prices of homes, whose interval contains the noise.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import tallmc

N_ROWS = 10_000  # reduced: 3_000

rng = np.random.default_rng(0)
cities = ["Bern", "Lyon", "Oslo"]
table = pd.DataFrame(
    {
        "rooms": rng.integers(1, 7, N_ROWS),
        "city": pd.Categorical(rng.choice(cities, N_ROWS, p=[0.2, 0.5, 0.3])),
        "garden": rng.choice(["no", "yes"], N_ROWS),
    }
)
per_room = table.city.map({"Bern": 90.0, "Lyon": 50.0, "Oslo": 70.0}).astype(float)
noise = 80 * rng.normal(size=N_ROWS)
table["price"] = 100 + per_room * table.rooms + 40 * (table.garden == "yes") + noise

draws = tallmc.fit("price ~ rooms * city + garden", table, family="gaussian", seed=0)
print(draws.summary().iloc[:, :4].round(2))
print(draws.report.verdict, "-", draws.report.meaning)

new = pd.DataFrame([(r, c, "no") for c in cities for r in range(1, 7)])
new.columns = ["rooms", "city", "garden"]
predicted = new.join(draws.predict(new).to_frame())
homes = new.join(draws.predict(new, kind="response").to_frame())
print(predicted.head(3).round(1))

fig, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
for city, rows in predicted.groupby("city"):
    bars = [rows["mean"] - rows["low"], rows["high"] - rows["mean"]]
    axis.errorbar(rows.rooms, rows["mean"], yerr=bars, fmt="o-", capsize=4, label=city)
    home = homes[homes.city == city]
    axis.fill_between(home.rooms, home["low"], home["high"], alpha=0.15)
axis.set(xlabel="rooms", ylabel="price (thousand euros)")
axis.set_title("Mean price (bars) and prices of homes (bands), 90 % intervals")
axis.legend()
fig.savefig("data_frame.png", dpi=120)
