"""`python -m memledger`: the same as the `memledger` command."""

from __future__ import annotations

import sys

from memledger.cli import main

if __name__ == "__main__":
    sys.exit(main())
