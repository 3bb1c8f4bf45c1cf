"""The program ``aiocoll``; ``python -m aiocoll`` is the same.

Rule: a Ctrl-C while its parts are still being imported ends it as any other does; and the user's directory is the
ranks' business: a ``queue.py`` in it must not become the runner's own ``queue``.
"""

import sys

INTERRUPTED_CODE = 130


def main() -> int:
    """Runs one command; returns its exit code."""
    try:
        from aiocoll.cli import main as chosen

        return chosen()
    except KeyboardInterrupt:
        return INTERRUPTED_CODE


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # where -m has put the working directory
    sys.exit(main())
