"""``python -m depthchart`` is the command line."""

import sys

from depthchart.cli import main

if __name__ == "__main__":
    sys.exit(main())
