"""Writes docs/parity.md: every documented name of torch.distributed, and what aiocoll.distributed makes of it.

    python3 scripts/parity.py            writes the page
    python3 scripts/parity.py --check    says what has changed, and fails if anything has

Run it with the torch that the page is about (see the extra "dev"). The rule: signatures are read from the installed
torch and from aiocoll, and every difference must have its reason in ``parity_reasons.py``.
"""

from __future__ import annotations

import argparse
import ast
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parity_names import BEHAVIOUR, EARLY, NOT_HERE, OPTIONS, TODAY, WITH_ANOTHER_NAME
from parity_reasons import REASONS, TORCH_PATHS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiocoll.distributed as dist
from aiocoll.runner import options

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "parity.md"
UNNAMED: Final = re.compile(r"arg\d+\Z")
HEAD: Final = """# Parity with torch.distributed

Every name that torch.distributed documents, early (2017 and 2018) and today, and what it is in `aiocoll.distributed`.
This page is written by `scripts/parity.py`, which reads the signatures of torch {torch}; a test fails when it no longer
tells the truth.

- **works**: the same name, arguments, order and defaults.
- **differs**: it is there, or something else does the same; how stands beside it.
- **does not apply**: why stands beside it.

{counts}
"""


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter, as a caller sees it."""

    name: str
    keyword_only: bool
    default: str
    """As text; empty if it must be given."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What a caller of torch would notice in a signature."""

    name: str
    argument: str
    what: str
    """"missing", "added", "moved" or "default"."""
    text: str

    @property
    def reason(self) -> str | None:
        """Why, from the data; None if nobody has given one."""
        for key in ((self.name, self.argument), (self.name, "*"), ("*", self.argument)):
            found = REASONS.get((*key, self.what))
            if found is not None:
                return found
        return None


@dataclass(frozen=True, slots=True)
class Row:
    """One name on the page."""

    name: str
    verdict: str
    how: str


def found(root: Any, name: str) -> Any:
    """What ``name`` (dotted) is in a module; None if it is not there."""
    for part in name.split("."):
        root = inspect.getattr_static(root, part, None) if isinstance(root, type) else getattr(root, part, None)
        if root is None:
            return None
    return root.__func__ if isinstance(root, staticmethod | classmethod) else root


def of_torch(name: str) -> Any:
    """The same in torch, which has some of it elsewhere."""
    import torch.distributed
    import torch.distributed._functional_collectives
    import torch.distributed.device_mesh

    first = name.split(".")[0]
    return found(torch.distributed, TORCH_PATHS.get(first, first) + name[len(first) :])


def arguments_of(thing: Any) -> list[Argument] | None:
    """What a caller may give; None for what is not called, or does not say."""
    if isinstance(thing, enum.EnumMeta | property) or not callable(thing):
        return None
    if isinstance(thing, type) and "torch._C" in getattr(thing, "__module__", ""):
        return _documented(thing.__init__)  # type: ignore[misc]  # of that very class, no subclass
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (ValueError, TypeError):
        return _documented(thing)
    return [
        Argument(each.name, each.kind is each.KEYWORD_ONLY, "" if each.default is each.empty else _text(each.default))
        for each in parameters
        if each.name not in ("self", "cls")
        and not each.name.startswith("_")
        and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]


def _documented(thing: Any) -> list[Argument] | None:
    """The arguments of what is written in C++, from the first line of its docstring."""
    for line in (getattr(thing, "__doc__", None) or "").splitlines():
        text = re.sub(r"^\d+\. ", "", line.strip()).replace("*args, **kwargs", "")
        shape = re.match(r"\w+(\(.*\))( ->.*)?$", text)
        if shape is None or text.endswith("()") and "args" in line:
            continue
        try:
            parsed = ast.parse(f"def f{shape[1]}: ...").body[0]
        except SyntaxError:
            continue
        assert isinstance(parsed, ast.FunctionDef)
        given, known = parsed.args.args, [ast.unparse(each) for each in parsed.args.defaults]
        made = zip(given, [""] * (len(given) - len(known)) + known, strict=True)
        return [Argument(each.arg, False, default) for each, default in made if each.arg != "self"]
    return None


def _text(default: Any) -> str:
    if default is dist.group.WORLD:
        return "group.WORLD"
    return str(getattr(default, "name", default)).upper() if "RedOpType" in repr(default) else _short(default)


def _short(default: Any) -> str:
    return str(default.name) if isinstance(default, dist.ReduceOp) else repr(default)


def differences(name: str, ours: list[Argument], theirs: list[Argument]) -> Iterator[Difference]:
    """What differs, argument by argument; names that torch itself does not give are compared by their number only."""
    if any(UNNAMED.match(each.name) for each in theirs):
        if len([each for each in ours if not each.default]) > len(theirs) or len(ours) < len(theirs):
            yield Difference(name, "*", "moved", f"takes {len(ours)} arguments, torch's {len(theirs)}")
        return
    mine = {each.name: each for each in ours}
    for place, their in enumerate(theirs):
        our = mine.get(their.name)
        if our is None:
            yield Difference(name, their.name, "missing", f"no `{their.name}=`")
            continue
        if our.default != their.default:
            text = f"`{our.name}={our.default or '…'}`, torch's `{our.name}={their.default or '…'}`"
            yield Difference(name, our.name, "default", text)
        at = [each.name for each in ours].index(our.name)
        if our.keyword_only and not their.keyword_only or (not their.keyword_only and at != place):
            yield Difference(name, our.name, "moved", f"`{our.name}=` stands elsewhere")
    for each in ours:
        if each.name not in {their.name for their in theirs}:
            yield Difference(name, each.name, "added", f"`{each.name}=` added")


def compared(name: str) -> list[Difference]:
    """How the signature of a name differs from torch's; nothing where one of them has none."""
    ours, theirs = found(dist, name), of_torch(name)
    if ours is None or theirs is None:
        return []
    mine, others = arguments_of(ours), arguments_of(theirs)
    return [] if mine is None or others is None else list(differences(name, mine, others))


def row(name: str) -> Row:
    """The line of one name."""
    if name in NOT_HERE and found(dist, name) is None:
        return Row(name, "does not apply", NOT_HERE[name])
    if name in WITH_ANOTHER_NAME and found(dist, name) is None:
        return Row(name, "differs", WITH_ANOTHER_NAME[name])
    if found(dist, name) is None and name not in ("_initialized", "_backend"):
        return Row(name, "missing", "")
    how = [each.text for each in compared(name) if each.argument != "group"]
    if name in BEHAVIOUR:
        how.append(BEHAVIOUR[name])
    return Row(name, "differs" if how else "works", "; ".join(how))


def torchrun() -> Iterator[Row]:
    """The options of torchrun, and what ``aiocoll run`` makes of them."""
    from torch.distributed.run import get_args_parser

    known = {text for action in options.parser()._actions for text in action.option_strings}
    for action in get_args_parser()._actions:
        for name in action.option_strings[:1]:
            if name in options._REFUSED:
                yield Row(name, "does not apply", f"refused: {options._REFUSED[name]}")
            elif name in options._DROPPED or name in options._DROPPED_WITH_VALUE:
                yield Row(name, "differs", "accepted, and changes nothing")
            elif name not in known:
                yield Row(name, "missing", "")
            else:
                yield Row(name, "differs" if name in OPTIONS else "works", OPTIONS.get(name, ""))


def rows() -> dict[str, list[Row]]:
    """All rows by chapter."""
    made = {chapter.title: [row(name) for name in chapter.stars + chapter.others] for chapter in (*EARLY, *TODAY)}
    made["Options of torchrun, for `aiocoll run`"] = list(torchrun())
    return made


def page() -> str:
    """docs/parity.md as it should be."""
    import torch

    chapters = rows()
    every = [each.verdict for chapter in chapters.values() for each in chapter]
    counts = ", ".join(f"{every.count(each)} {each}" for each in dict.fromkeys(sorted(every, reverse=True)))
    parts = [HEAD.format(torch=torch.__version__.partition("+")[0], counts=f"{len(every)} names: {counts}.")]
    for title, lines in chapters.items():
        parts.append(f"## {title}\n\n| name | here | how or why |\n| --- | --- | --- |")
        parts[-1] += "".join(f"\n| `{each.name}` | {each.verdict} | {each.how} |" for each in lines) + "\n"
    parts.append("## Why arguments differ\n\n| where | argument | why |\n| --- | --- | --- |")
    for (name, argument, _), why in REASONS.items():
        where = "everywhere" if name == "*" else f"`{name}`"
        parts[-1] += f"\n| {where} | {'all' if argument == '*' else f'`{argument}`'} | {why} |"
    return "\n".join(parts) + "\n"


def summary(text: str) -> str:
    """The line of a page that counts its names."""
    return next(line for line in text.splitlines() if re.match(r"\d+ names: ", line))


def main() -> int:
    """Writes or checks the page; gives the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/parity.md from the installed torch.", allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    given = parser.parse_args()
    wanted = page()
    if not given.check:
        PAGE.write_text(wanted)
        print(f"{PAGE.relative_to(ROOT)}: {summary(wanted)}")
        return 0
    same = PAGE.exists() and PAGE.read_text() == wanted
    print(f"{PAGE.relative_to(ROOT)} is {'' if same else 'not '}up to date")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
