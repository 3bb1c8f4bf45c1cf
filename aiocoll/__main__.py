"""``python -m aiocoll`` is the same program as ``aiocoll``."""

import sys

from aiocoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
