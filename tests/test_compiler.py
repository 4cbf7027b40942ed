"""XLA options take effect if set in time, are harmless otherwise, and do not change results."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import slow_after
from tallmc._core.compiler import ask_for_whole_loops, loops_are_whole
from tallmc._rows import law as gather

_SAMPLE = """
x = np.random.default_rng(0).normal(size=(500, 3))
posterior = tallmc.models.linear_regression(x, x[:, 0], prior_variance=1.0, noise_variance=1.0)
method = tallmc.methods.sgld(1e-4, batch_size=8)
sampled = tallmc.sample(posterior, method, chains=2, n_draws=50, seed=1, progress=False)
draws = sampled.positions.tolist()
"""
_REPORT = """
import json, os
from tallmc._core.compiler import loops_are_whole
print(json.dumps({"whole": loops_are_whole(), "flags": os.environ["XLA_FLAGS"], "draws": draws}))
"""


def report_of(imports, sample="draws = None", **environment):
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    program = [sys.executable, "-c", f"import numpy as np\n{imports}\n{sample}\n{_REPORT}"]
    ran = subprocess.run(
        program, env={**kept, **environment}, capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_loops_are_whole_unless_it_is_too_late_and_the_draws_are_the_same():
    here: dict = {"np": np, "tallmc": tallmc}
    with jax.enable_x64(False):
        exec(_SAMPLE, here)
    too_late = report_of("import jax; jax.numpy.ones(3) + 1; import tallmc", _SAMPLE)
    assert loops_are_whole() and not too_late["whole"]
    np.testing.assert_allclose(here["draws"], too_late["draws"], rtol=1e-3, atol=1e-4)


def test_flags_of_the_user_stay(monkeypatch):
    for theirs, added in (
        ("--xla_cpu_enable_fast_math=false", 1),
        ("--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=0", 0),
    ):
        monkeypatch.setenv("XLA_FLAGS", theirs)
        ask_for_whole_loops()
        flags = os.environ["XLA_FLAGS"].split()
        assert flags[0] == theirs and len(flags) == 1 + added


@pytest.mark.slow
def test_flags_of_the_user_have_their_effect():
    theirs = "--xla_cpu_enable_fast_math=false"
    with_theirs = report_of("import tallmc", XLA_FLAGS=theirs)
    assert with_theirs["whole"] and with_theirs["flags"].split()[0] == theirs
    options = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=0"
    opted_out = report_of("import tallmc", XLA_FLAGS=options)
    assert not opted_out["whole"] and opted_out["flags"] == options


@pytest.mark.parametrize("chains", [None, 1, 3])
def test_rows_taken_one_by_one_are_those_of_a_gather(chains, monkeypatch):
    data = {"x": np.arange(60.0).reshape(20, 3), "y": np.arange(20)}
    shape = (7,) if chains is None else (chains, 7)
    indices = np.random.default_rng(0).integers(0, 20, shape)
    monkeypatch.setattr(gather, "loops_are_whole", lambda: True)
    take = jax.jit(
        gather.take_rows if chains is None else jax.vmap(gather.take_rows, in_axes=(None, 0))
    )
    taken = take(data, indices)
    assert ("gather" in str(jax.make_jaxpr(take)(data, indices))) == (chains == 3)
    for name, column in data.items():
        np.testing.assert_array_equal(taken[name], np.asarray(column)[np.asarray(indices)])


@pytest.mark.parametrize("n_rows", slow_after(1, [2**18, 64]))
def test_data_are_kept_as_they_were_given_and_are_the_librarys_own(n_rows):
    values = np.random.default_rng(0).normal(size=(n_rows, 4))
    room = np.empty(values.nbytes + 64, np.uint8)
    first = -room.ctypes.data % 64  # JAX shares aligned memory instead of copying it
    given = room[first : first + values.nbytes].view(float).reshape(values.shape)
    given[:] = values
    posterior = tallmc.models.linear_regression(
        given, given[:, 0], prior_variance=1.0, noise_variance=1.0
    )
    general = tallmc.Posterior(
        lambda params, row: -jnp.sum(row * params), lambda params: 0.0, given, jnp.zeros(4)
    )
    given[:] = 0
    np.testing.assert_array_equal(posterior.data.x, values)
    np.testing.assert_array_equal(general.data, values)
    assert n_rows == 64 or posterior.data.x.unsafe_buffer_pointer() % 64 == 0
