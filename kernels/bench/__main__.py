"""Time the kernels and print the figures as one JSON object.

Run from the folder `kernels`: `python -m bench` on a machine with a GPU, `python -m bench --cpu`
for the torch backend (`--threads`, `--rounds`).
"""

import argparse
import json
import sys

import torch
from bench.setup import machine


def main() -> int:
    """Parse arguments, measure, print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="time the torch backend")
    parser.add_argument("--threads", type=int, default=1, help="threads of the torch backend")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds on the CPU")
    args = parser.parse_args()
    if args.cpu:
        torch.set_num_threads(args.threads)
        from bench import cpu

        found = cpu.figures(max(args.rounds, 3))
    elif torch.cuda.is_available():
        from bench import gpu

        found = gpu.figures()
    else:
        print("torch sees no GPU here: run with --cpu to time the torch backend.", file=sys.stderr)
        return 1
    print(json.dumps({"machine": machine(), "figures": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
