"""``python -m aiocoll`` is the same program as ``aiocoll``.

Rule: the user's directory is the ranks' business: a ``queue.py`` in it must not become the runner's own ``queue``.
"""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # where -m has put the working directory
    from aiocoll.cli import main

    sys.exit(main())
