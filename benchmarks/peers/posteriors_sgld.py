"""posteriors, as in its documentation: a Python loop over minibatches, drawn uniformly."""

import posteriors
import torch


def make(x, y, size, steps, step_size):
    rows, responses = torch.from_numpy(x), torch.from_numpy(y)
    n_rows = len(responses)

    def log_posterior(theta, batch):
        features, labels = batch
        z = features @ theta["beta"]
        likelihood = (labels * z - torch.nn.functional.softplus(z)).mean()
        return likelihood - 0.5 * (theta["beta"] ** 2).sum() / 10.0 / n_rows, torch.tensor([])

    sgld = posteriors.sgmcmc.sgld.build(
        log_posterior, lr=step_size * n_rows, temperature=1 / n_rows
    )

    def take_steps():
        state = sgld.init({"beta": torch.zeros(x.shape[1])})
        for _ in range(steps):
            indices = torch.randint(0, n_rows, (size,))
            state, _ = sgld.update(state, (rows[indices], responses[indices]))
        return state

    return take_steps
