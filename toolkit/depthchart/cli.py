"""The headless front door: ``depthchart VERB …``, one module of ``depthchart.commands`` per verb.

A verb's module has ``NAME``, ``HELP``, ``add_parser(subparsers)`` and ``run(args) -> int``; with
``TAKES_LINE = True`` it also gets all words after ``--`` as ``args.line``. Exit codes: 0 fine, 1 the
verb's answer is "no", 2 the call itself is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from depthchart import __version__
from depthchart.errors import DepthchartError

__all__ = ["main"]

VERBS = (
    "demo",
    "check",
    "depth",
    "replay",
    "cases",
    "verify",
    "simulate",
    "leaderboard",
    "sweep",
    "capacity",
    "explain",
    "report",
    "export",
    "bench",
    "traces",
    "models",
)
"""Module names, in the order of the help text."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; wrong arguments and faults of a run become one line on stderr and exit code 2."""
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader (such as head) has left
        _drop_stdout()
        return 141
    except KeyboardInterrupt:
        return _failed("stopped", 130)
    except MemoryError:
        return _failed("error: not enough memory; a pool or an input is too large", 2)
    except RecursionError:
        return _failed("error: the input is nested too deeply", 2)
    except OSError as error:
        _drop_stdout()  # it may be the one that cannot be written
        return _failed(f"error: {error}", 2)
    except (ValueError, EOFError, DepthchartError) as error:
        return _failed(f"error: {error}", 2)


def _run(words: list[str]) -> int:
    words, line = _split(words)
    parser, modules = _parser(words)
    args = parser.parse_args(words)
    args.line = line
    module = modules[args.verb]
    if line is not None and not getattr(module, "TAKES_LINE", False):
        parser.error(f"{args.verb}: takes nothing after --")
    return int(module.run(args))


def _failed(words: str, code: int) -> int:
    if sys.stderr is not None:
        print(f"depthchart: {words}", file=sys.stderr)
    return code


def _drop_stdout() -> None:
    """Give the interpreter's last flush somewhere to go."""
    with suppress(OSError, ValueError, AttributeError):  # stdout is closed, or is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _split(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Words before and after the first ``--``, which argparse would otherwise swallow."""
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parser(words: list[str]) -> tuple[argparse.ArgumentParser, dict[str, ModuleType]]:
    parser = argparse.ArgumentParser(
        prog="depthchart",
        description="Where can the prefix cache of a hybrid language model keep its states?",
    )
    parser.add_argument("--version", action="version", version=f"depthchart {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    modules = _modules(words)
    for module in modules.values():
        module.add_parser(subparsers)
    return parser, modules


def _modules(words: list[str]) -> dict[str, ModuleType]:
    """The asked verb's module alone, so that each verb starts quickly; all that exist for help and errors."""
    first = [word for word in words[:1] if word in VERBS]
    found: dict[str, ModuleType] = {}
    for verb in first or VERBS:
        if find_spec(f"depthchart.commands.{verb}") is not None:
            module = import_module(f"depthchart.commands.{verb}")
            found[module.NAME] = module
    return found or (_modules([]) if first else {})
