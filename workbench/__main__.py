"""``python -m workbench``: the command ``workbench``, if that is not on PATH."""

from __future__ import annotations

import sys

from workbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
