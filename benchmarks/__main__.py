"""python -m benchmarks NAME [options]: prints a table; writes NAME.json and NAME.png into benchmarks/results/."""

import argparse
from pathlib import Path

import torch

from benchmarks import compile, distributed, eager, fused, graph, memory, models
from benchmarks.machine import measure_machine
from benchmarks.report import print_table, write_results

# Modules with cases(), of things that have a name and measure(rounds).
BENCHMARKS = {
    "eager": eager,
    "fused": fused,
    "graph": graph,
    "compile": compile,
    "models": models,
    "memory": memory,
    "distributed": distributed,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    for name, module in BENCHMARKS.items():
        command = commands.add_parser(name, help=module.__doc__.splitlines()[0], description=module.__doc__)
        command.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of both devices")
        command.add_argument("--only", default="", metavar="TEXT", help="cases whose group or name contains TEXT")
        command.add_argument("--rounds", type=int, default=30, help="measurements of a case; the best counts")
        command.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    there = BENCHMARKS[arguments.name].cases()
    cases = [case for case in there if arguments.only in case.group or arguments.only in case.name]
    if not cases:
        names = ", ".join(f"{case.name} ({case.group})" for case in there)
        parser.error(f"no case's group or name contains {arguments.only!r}; there are: {names}")
    machine = measure_machine()
    print(machine)
    results = [case.measure(arguments.rounds) for case in cases]
    print_table(arguments.name, machine, results)
    for path in write_results(arguments.output, arguments.name, machine, results):
        print(path)


if __name__ == "__main__":
    main()
