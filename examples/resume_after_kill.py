"""Resume a run after kill -9.

A process samples into a store and is killed by SIGKILL, which it cannot catch, in the middle of the
run. `tallmc.resume` continues after the last complete block. The draws have the same bits as those
of a run that was not interrupted.

The picture shows one coefficient of both runs, on top of each other.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import matplotlib.pyplot as plt
import numpy as np

import tallmc

N_DRAWS = 4_000  # reduced: 3_000
SETTINGS = {"chains": 2, "n_draws": N_DRAWS, "thin": 50, "seed": 0}
METHOD = tallmc.methods.sgld_cv_ps(step_size=3e-4, batch_size=100)


def problem():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(20_000), rng.normal(size=(20_000, 4))])
    y = rng.random(20_000) < 1 / (1 + np.exp(-X @ [0.5, 1.0, -1.0, 0.3, 0.0]))
    return tallmc.models.logistic_regression(X, y, prior_variance=10.0)


def in_another_process(function):
    load = "import pickle, sys; pickle.load(sys.stdin.buffer)()"
    process = subprocess.Popen([sys.executable, "-c", load], stdin=subprocess.PIPE)
    process.stdin.write(cloudpickle.dumps(function))
    process.stdin.close()
    return process


def n_stored(store):
    try:
        return tallmc.load(store).positions.shape[1]
    except tallmc.InvalidInput:
        return 0  # no block is complete yet


posterior = problem()
with tempfile.TemporaryDirectory() as folder:
    store = Path(folder) / "run"
    process = in_another_process(lambda: tallmc.sample(problem(), METHOD, store=store, **SETTINGS))
    while process.poll() is None and n_stored(store) < N_DRAWS // 4:
        time.sleep(0.05)
    process.kill()  # SIGKILL
    print(f"exit status of the killed process: {process.wait()}")
    kept = n_stored(store)
    print(f"draws per chain in the store: {kept:,} of {N_DRAWS:,}")
    resumed = tallmc.resume(store, posterior).positions.copy()

whole = tallmc.sample(posterior, METHOD, **SETTINGS).positions
print(f"resumed and uninterrupted draws have the same bits: {np.array_equal(resumed, whole)}")

fig, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
draw = np.arange(N_DRAWS)
axis.plot(draw, whole[0, :, 1], color="0.75", linewidth=4, label="uninterrupted run")
axis.plot(draw[:kept], resumed[0, :kept, 1], linewidth=1, label="before the kill")
axis.plot(draw[kept:], resumed[0, kept:, 1], linewidth=1, label="resumed")
axis.axvline(kept - 0.5, color="tab:red", label="end of the last complete block")
axis.set(xlabel="draw of the first chain", ylabel="coefficient (log odds)")
axis.set(xlim=(kept - 60, kept + 60), title="The resumed run lies on the uninterrupted one")
axis.legend(ncols=4, fontsize=8, loc="upper center")
fig.savefig("resume_after_kill.png", dpi=120)
