"""``depthchart bench tree``: CPU time a request of the radix tree and of the lifecycle, at tree pages 1, 64 and 512."""

from __future__ import annotations

import sys

from depthchart.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "tree", *sys.argv[1:]]))
