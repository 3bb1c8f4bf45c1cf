"""``aiocoll run``: from the command line to the job's exit code.

Rule: ranks are started before anything heavy is imported, and a mistake on the command line is said in one line
(exit code 2).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from aiocoll.errors import AiocollError, UsageError
from aiocoll.runner.console import Console, FileSink
from aiocoll.runner.options import Options, parse
from aiocoll.runner.plan import BLAS_VARIABLES, Layout, base_environment, command_line, describe
from aiocoll.runner.signals import STOPPED, UNREAD_CODE, EarlySignals
from aiocoll.runner.start import Recipe
from aiocoll.runner.traces import Traces

USAGE_CODE = 2
CLOSE_S = 3.0


def main(argv: Sequence[str]) -> int:
    """Runs the job that the arguments after ``aiocoll run`` describe."""
    try:
        options = parse(argv)
        if options.chdir:
            _change_directory(options.chdir)
        program = command_line(options.kind, options.command)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE_CODE
    layout = Layout(
        size=options.ranks * options.nnodes,  # of several runners, `Node.meet` knows better
        ranks=options.ranks,
        first=options.ranks * (options.node_rank or 0),
        node_rank=options.node_rank or 0,
        nnodes=options.nnodes,
        job=options.job or os.urandom(6).hex(),
        rdzv=f"tcp://{options.rdzv}" if options.rdzv else "tcp://127.0.0.1:<free port>",
        master=options.master,
        restarts_max=options.max_restarts,
    )
    env = base_environment(os.environ, options.env, options.ranks)
    if options.dry_run:
        _show_plan(options, layout, program, env)
        return 0
    return _run(options, layout, program, env)


def _run(options: Options, layout: Layout, program: list[str], env: dict[str, str]) -> int:
    several = layout.size > 1
    traces = Traces.choose(env, options.log_dir)
    recipe = Recipe(
        program,
        {**env, **traces.variables},
        traces=traces,
        piped=several or options.json or bool(options.log_dir) or options.shown is not None,
        stdin_rank=options.stdin,
    )
    console = Console(
        FileSink(1),
        FileSink(2),
        prefixed=several,
        events=options.json,
        shown=lambda rank: options.shown is None or rank in options.shown,
    )
    if options.verbose:
        threads = env.get(BLAS_VARIABLES[0])
        console.say(f"aiocoll: job {layout.job}: ranks here: {options.ranks}, BLAS threads of each: {threads}")
    return see_through(options, layout, recipe, console)


def see_through(options: Options, layout: Layout, recipe: Recipe, console: Console) -> int:
    """Starts the ranks, stays with them to their end and closes the console; the job's exit code.

    From here on the signals that stop a job are the job's, so this is for the main thread of a program that ends with
    it.
    """
    code: int | None = None
    try:
        code = _seen_through(options, layout, recipe, console)
    finally:
        # Somebody who stops the job has no patience with a reader (a pager) that has stopped reading.
        console.close(CLOSE_S if code in STOPPED else None)
    return code or (UNREAD_CODE if console.unread else 0)


def _seen_through(options: Options, layout: Layout, recipe: Recipe, console: Console) -> int:
    early = EarlySignals()
    try:
        first = recipe.start_alone(layout) if options.nnodes == 1 else None
        from aiocoll.runner.supervise import supervise

        return supervise(options, recipe, console, first, early)
    except UsageError as error:
        console.say(f"aiocoll run: {error}")
        return USAGE_CODE
    except AiocollError as error:
        console.say(f"aiocoll: {error}")
        return 1


def _change_directory(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as error:
        raise UsageError(f"aiocoll run: --chdir {path!r}: {error.strerror}") from error


def _show_plan(options: Options, layout: Layout, program: list[str], env: dict[str, str]) -> None:
    plan = describe(layout, program, env, os.environ)
    if options.json:
        sys.stdout.write(json.dumps(plan) + "\n")
        return
    import shlex

    lines = [
        f"job {layout.job}: world of {layout.size}, {layout.ranks} here (node {layout.node_rank} of {layout.nnodes})",
        f"store {layout.rdzv}; in {os.getcwd()}",
    ]
    ranks = plan["ranks"]
    assert isinstance(ranks, list)
    for rank in ranks:
        lines.append(f"[r{rank['rank']}] {shlex.join(rank['argv'])}")
        lines += [f"[r{rank['rank']}]   {name}={value}" for name, value in rank["env"].items()]
    sys.stdout.write("\n".join(lines) + "\n")
