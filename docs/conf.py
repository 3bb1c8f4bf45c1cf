"""How Sphinx builds the manual: python -m sphinx -W docs FOLDER.

The rule: pages are Markdown that reads well without being built, and every warning is an error in the tests.
"""

from __future__ import annotations

import re
from typing import Any

import aiocoll

project = "aiocoll"
author = "The aiocoll authors"
project_copyright = "The aiocoll authors"
version = release = aiocoll.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
default_role = "code"  # docstrings write names between single backticks

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_title = f"aiocoll {version}"
html_show_sourcelink = False
html_show_sphinx = False


_LITERAL = re.compile(r"(``.*?``|`[^`]*`)", re.DOTALL)
_MARKUP = re.compile(r"(?<![*\w])\*(?=\w)|(?<=\w)_(?!\w)")  # *args, *_multigpu, ERR_: plain text to whoever wrote it


def _plain(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are text for people: stars and underscores outside of backticks mean nothing."""
    parts = _LITERAL.split("\n".join(lines))
    parts[::2] = [_MARKUP.sub(lambda found: "\\" + found[0], part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")


def setup(app: Any) -> None:
    """What Sphinx calls."""
    app.connect("autodoc-process-docstring", _plain)
