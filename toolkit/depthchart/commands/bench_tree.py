"""``depthchart bench tree``: CPU time a request of the radix tree and of the lifecycle, ours and SGLang's."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from depthchart.display import table_text
from depthchart.provenance import provenance

FLAGS = {
    "pages": "tree pages, as in 1,64,512 (the default)",
    "sessions": "sessions of 10 turns (default: 200)",
    "csv": "CSV file to write, with where it comes from in its head",
}
KERNELS_TOO = ("against", "rounds")  # flags that both benches have
METHOD = """load: sessions of 10 turns, turn about; 2,000 shared tokens, 500 new ones a turn, 50 of them decoded
tree: match, then insert the whole turn with a state at its end, on prepared prompts; lifecycle: match to finish, states
where SGLang has them; sglang's replies get their KV at once as ours, or step by step as its scheduler does;
books only: at once, and without what a GPU would do beside the scheduler
CPU time of one thread, us a request, medians of rounds and the fastest; pools with room for all and for half of it;
all in one process"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that only this bench has."""
    for name, text in FLAGS.items():
        parser.add_argument(f"--{name}", metavar=name.upper(), help=f"bench tree: {text}")


def run(args: argparse.Namespace) -> int:
    """Measure, print one table, write it where asked for."""
    from depthchart import sglang_peer
    from depthchart.tree_bench import COLUMNS, measure, write_csv

    pages = [_whole("pages", word) for word in (args.pages or "1,64,512").split(",")]
    sessions, rounds = _whole("sessions", args.sessions or "200"), _whole("rounds", args.rounds or "5")
    against = args.against or []
    unknown = [name for name in against if name != "sglang"]
    if unknown:
        raise ValueError(f"--against {unknown[0]}: bench tree compares with sglang only; nearest: sglang")
    peer = sglang_peer.installed() if against else None
    cores = sglang_peer.CORES if peer else ()
    with _bar(rounds * len(pages)) as bar:
        rows = [row for page in pages for row in measure(page, sessions, rounds, cores, bar.update)]
    peers = sglang_peer.versions() if peer else {}
    facts = {**provenance(), **peers}
    if args.csv:
        write_csv(rows, Path(args.csv), " ".join(["depthchart", *sys.argv[1:]]), peers)
    if args.json:
        print(json.dumps({"provenance": facts, "rows": [row._asdict() for row in rows]}, indent=2))
        return 0
    shown: list[tuple[object, ...]] = [COLUMNS, *rows]
    print(table_text(shown, numeric=range(2, len(COLUMNS))))
    print(f"\n{METHOD}")
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if against and not peer:
        print("sglang is not installed: ours alone; pip install sglang==0.5.23 to compare")
    return 0


def _whole(name: str, word: str) -> int:
    if not word.strip().isdigit() or int(word) < 1:
        raise ValueError(f"--{name} {word!r}: must be a whole number of at least 1; nearest: 1")
    return int(word)


def _bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit="round", disable=None)
