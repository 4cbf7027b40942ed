"""A hierarchy: one intercept per shop.

`(1 | shop)` gives every shop its own intercept. The intercepts share a normal distribution whose
spread is estimated. A shop with few rows borrows from the others: its intercept is pulled towards
the common mean, and its interval is wider. The picture compares the posterior with the logits of
the shares in each shop alone, and with the true intercepts.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import tallmc

N_ROWS = 50_000  # reduced: 4_000
N_SHOPS = 20

rng = np.random.default_rng(3)
effects = rng.normal(0, 0.5, N_SHOPS)
size = np.geomspace(1, 500, N_SHOPS)
shop = rng.choice(N_SHOPS, N_ROWS, p=size / size.sum())
price = rng.normal(size=N_ROWS)
bought = rng.random(N_ROWS) < 1 / (1 + np.exp(1.0 - effects[shop] + 0.7 * price))
names = np.array([f"shop{number:02}" for number in range(N_SHOPS)])
table = pd.DataFrame({"bought": bought.astype(int), "price": price, "shop": names[shop]})

draws = tallmc.fit("bought ~ price + (1 | shop)", table, family="bernoulli", seed=0)
spread = draws.values["1|shop_sigma"]
print(f"spread of the shops: {spread.mean():.2f} ± {spread.std():.2f}; true 0.5")
print(f"price: {draws.values['price'].mean():.3f} ± {draws.values['price'].std():.3f}; true -0.7")
print(draws.report.verdict, "-", draws.report.meaning)

effect = draws.values["1|shop"] - draws.values["1|shop"].mean(axis=-1, keepdims=True)
low, middle, high = np.quantile(effect, [0.05, 0.5, 0.95], axis=(0, 1))
shops = table.groupby("shop").bought.agg(["sum", "count"])
alone = np.log((shops["sum"] + 0.5) / (shops["count"] - shops["sum"] + 0.5)).to_numpy()

fig, axis = plt.subplots(figsize=(8, 3.8), layout="constrained")
at = np.arange(N_SHOPS)
bars = [middle - low, high - middle]
axis.errorbar(at, middle, yerr=bars, fmt="o", capsize=3, label="posterior, 90 % interval")
axis.plot(at, alone - np.average(alone), "x", color="tab:orange", label="each shop alone")
axis.plot(at, effects - effects.mean(), "_", color="tab:red", markersize=12, label="true value")
axis.set_xticks(at, [f"{count:,}" for count in shops["count"]], rotation=45)
axis.set(xlabel="rows of the shop", ylabel="intercept − mean (log odds)")
axis.set_title("Shops with few rows are pulled towards the mean")
axis.legend(ncols=3, fontsize=8, loc="lower right")
fig.savefig("random_intercepts.png", dpi=120)
