"""Flags that several verbs share."""

from __future__ import annotations

import argparse
from typing import Any

from depthchart.geometry import Geometry

__all__ = ["GEOMETRY_FLAGS", "add_geometry", "add_verb", "geometry_of", "given_geometry"]

GEOMETRY_FLAGS = {
    "page_size": "scheduler page [tokens]",
    "dcp_size": "decode-context-parallel ranks",
    "chunk_width": "chunk of the scan kernel [tokens]",
    "index_pool": "further factor on the tree page",
    "chunked_prefill_size": "token budget of one prefill step",
    "track_interval": "decode checkpoints are asked for every so many tokens",
}


def add_verb(
    subparsers: Any, name: str, text: str, examples: str = "", **options: Any
) -> argparse.ArgumentParser:
    """Add a verb's own parser; ``examples`` are shown below its help as they are written."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=text,
        description=text,
        epilog=examples or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    return parser


def add_geometry(parser: argparse.ArgumentParser, *, page_size: int | None = None) -> None:
    """Add one flag per field of Geometry; ``page_size`` is its default where it need not be given."""
    for name, text in GEOMETRY_FLAGS.items():
        default = page_size if name == "page_size" else None
        note = f" (default: {default})" if default is not None else ""
        parser.add_argument(
            "--" + name.replace("_", "-"), type=int, metavar="N", default=default, help=text + note
        )


def given_geometry(args: argparse.Namespace) -> dict[str, int]:
    """The fields that were given. Raises ValueError for a missing page size through Geometry itself."""
    return {name: getattr(args, name) for name in GEOMETRY_FLAGS if getattr(args, name) is not None}


def geometry_of(args: argparse.Namespace) -> Geometry:
    """The Geometry of the flags; raises ValueError where it is illegal or the page size is missing."""
    given = given_geometry(args)
    if "page_size" not in given:
        raise ValueError("page_size: is missing; give --page-size N")
    return Geometry(**given)
