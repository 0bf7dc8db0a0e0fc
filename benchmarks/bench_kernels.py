"""The scans on this machine, snapshots off and on, beside the token-by-token reference; writes out/kernels.csv."""

from __future__ import annotations

import sys
from pathlib import Path

from depthchart_kernels.bench import main

if __name__ == "__main__":
    out = Path("out", "kernels.csv")
    out.parent.mkdir(exist_ok=True)
    raise SystemExit(main(["--against", "reference", "--out", str(out), *sys.argv[1:]]))
