"""Decodes a few rows of a model, as a program: `python -m localspec.selftest.decode FILE`.

A kernel that was built wrong, or for another CPU, ends the process that runs it: this one, and no other.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from localspec.engine.backend import Context, ContextSettings, load_model
from localspec.errors import LocalspecError

ROWS = 5
"""As a round verifies: kernels for one row and for several differ."""


def decode(path: Path) -> None:
    """One row, then several.

    Raises:
        LocalspecError: the model does not load or decode, or its logits are no numbers.
    """
    model = load_model(path)
    context = Context(model, ContextSettings(n_ctx=256, n_outputs_max=ROWS, threads=1))
    try:
        for n in (1, ROWS):
            tokens = np.arange(n, dtype=np.int32) % model.vocabulary.n_vocab
            if not np.isfinite(context.run(tokens, context.last_position(0) + 1, 0, n)).all():
                raise LocalspecError(f"the logits of {n} rows are no numbers")
    finally:
        context.close()
        model.close()


if __name__ == "__main__":
    try:
        decode(Path(sys.argv[1]))
    except LocalspecError as error:
        sys.exit(error.message)
