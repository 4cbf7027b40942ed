"""The words that topics give most probability to."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import InvalidInput, check_int


def top_words(draws: Any, n: int = 10) -> list[list[list[str]]]:
    """The most probable words of the mean topics of every chain.

    The order of topics may differ between chains, so topics are averaged within chains only.

    **Arguments:**

    - `draws`: draws of a posterior of `tallmc.models.lda`.
    - `n`: how many words per topic.

    **Returns:** for every chain and topic a list of words, the most probable word first. Words are
    numbers, as text, if the posterior has no vocabulary.

    **Raises:** `InvalidInput` if the draws have no topics.

    >>> import numpy as np, tallmc
    >>> documents = np.array([[9, 0], [0, 9]])
    >>> posterior = tallmc.models.lda(documents, n_topics=1, vocabulary=["sun", "rain"])
    >>> method = tallmc.scir(step_size=0.2, size=2)
    >>> draws = tallmc.sample(posterior, method, chains=1, draws=50, progress=False)
    >>> sorted(top_words(draws, n=2)[0][0])
    ['rain', 'sun']
    """
    quantities = getattr(draws, "quantities", None)
    if quantities is None or "topics" not in quantities.shapes:
        raise InvalidInput("draws", "be draws of tallmc.models.lda", type(draws).__name__)
    words = quantities.coords.get("word") or tuple(map(str, range(quantities.shapes["topics"][1])))
    n = check_int("n", n, 1, len(words))
    mean = quantities.of(draws.positions)["topics"].mean(axis=1)
    order = np.argsort(-mean, axis=-1)[..., :n]
    return [[[words[word] for word in topic] for topic in chain] for chain in order]
