"""The examples of docs/prediction.md run in order."""

import numpy as np

from test_readme import ROOT, run_blocks


def test_examples_of_predictions_run():
    names = run_blocks(ROOT / "docs" / "prediction.md")
    low, high = names["later"].low, names["later"].high
    assert low[1] > high[0] > 0
    np.testing.assert_allclose(names["prediction"].mean[0], 0.55, atol=0.05)
    estimate = names["estimate"]
    assert estimate.bad_share == 0 and abs(estimate.p_loo - 3) < 1
