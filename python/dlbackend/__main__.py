"""Command-line tools: python -m dlbackend info | doctor | cache | tune | validate | bench."""

import argparse
import sys

from dlbackend.tools import bench, cache, doctor, info
from dlbackend.tools.validation import command as validation
from dlbackend.tuning import command


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dlbackend", description="Tools of PyTorch's device ocl.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, run, about in (
        ("info", info.main, "devices with their capabilities, versions, cache folder"),
        ("doctor", doctor.main, "check each link from torch to a computed result, and say what to do"),
    ):
        commands.add_parser(name, help=about, description=about).set_defaults(run=lambda _, run=run: run())
    about = "what is kept on disk between processes: show, check, clear, carry to other machines"
    cache.add_arguments(commands.add_parser("cache", help=about, description=about))
    about = "measure a model's precisions, memory layouts, fusions and solvers; keep the fastest as JSON"
    command.add_arguments(commands.add_parser("tune", help=about, description=about))
    about = "run networks of torchvision and transformers on the device and compare them with the CPU"
    validation.add_arguments(commands.add_parser("validate", help=about, description=about))
    about = "time training steps of networks on several devices side by side"
    bench.add_arguments(commands.add_parser("bench", help=about, description=about))
    args = parser.parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
