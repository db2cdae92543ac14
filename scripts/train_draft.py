"""Entry point of `scripts/train_draft`; the work is in `training/`."""

from __future__ import annotations

import sys

from training.command import main

if __name__ == "__main__":
    sys.exit(main())
