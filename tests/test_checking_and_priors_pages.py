"""The examples of the guides on checking a fit and on priors run in order."""

import re
import warnings

from test_readme import ROOT, run_blocks


def test_examples_of_checking_run(capsys):
    names = run_blocks(ROOT / "docs" / "checking.md")
    assert names["draws"].health.trusted
    assert names["good"].health.trusted
    assert names["bad"].health.verdict == "doubtful"
    assert names["slow"].health.rhat > 1.1
    found = re.findall(r"^(\w+) +KSD ([\d.]+)", capsys.readouterr().out, re.MULTILINE)
    discrepancy = {name: float(value) for name, value in found}
    assert discrepancy["bad"] > discrepancy["good"]


def test_examples_of_priors_run(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes, and few effective draws
        names = run_blocks(ROOT / "docs" / "priors.md")
    default, narrow = names["default"].values[names["term"]], names["narrow"].values[names["term"]]
    rare, frequent = 0, 1  # islands and south
    shift = abs(default.mean(axis=(0, 1)) - narrow.mean(axis=(0, 1)))
    assert shift[frequent] < default[..., frequent].std() < shift[rare]
    assert "the rows do not determine beta[1] - beta[3]" in capsys.readouterr().out
