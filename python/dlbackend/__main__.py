"""Command-line tools: python -m dlbackend info | doctor."""

import argparse
import sys

from dlbackend import doctor, info


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dlbackend", description="Tools of PyTorch's device ocl.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, run, about in (
        ("info", info.main, "devices with their capabilities, versions, cache folder"),
        ("doctor", doctor.main, "check each link from torch to a computed result, and say what to do"),
    ):
        commands.add_parser(name, help=about, description=about).set_defaults(run=run)
    return int(parser.parse_args().run())


if __name__ == "__main__":
    sys.exit(main())
