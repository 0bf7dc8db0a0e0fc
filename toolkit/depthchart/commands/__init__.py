"""One module per verb of the command line: ``add_parser(subparsers)`` and ``run(args) -> int``."""
