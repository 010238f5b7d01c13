"""The software CANN for any client of CANN.

python -m cann_host                          where it is and how it is set
python -m cann_host env                      the environment in which a client finds it, for `eval`
python -m cann_host run -- python train.py   runs a command in that environment
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from cann_host import environment, library, root, settings


def show() -> None:
    built = "built" if library().exists() else "not built; run `make build`"
    print(f"cann_host in {root()} ({built})")
    width = max(map(len, settings()))
    for setting in settings().values():
        print(f"  {setting.name:{width}}  {setting.value}\n  {'':{width}}  {setting.meaning}")


def print_environment() -> None:
    for name, value in environment().items():
        print(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")


def run(command: list[str]) -> None:
    """Becomes the command."""
    changes = environment()
    kept = {name: value for name, value in os.environ.items() if name not in changes}
    env = kept | {name: value for name, value in changes.items() if value is not None}
    try:
        os.execvpe(command[0], command, env)
    except OSError as error:
        sys.exit(f"cann_host run: {command[0]}: {error.strerror}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cann_host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="{env,run}")
    commands.add_parser("env", help="print the environment")
    runner = commands.add_parser("run", help="run a command in the environment")
    runner.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- command")
    arguments = parser.parse_args()
    if arguments.command is None:
        show()
    elif arguments.command == "env":
        print_environment()
    else:
        argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
        if not argv:
            runner.error("expected a command: python -m cann_host run -- python train.py")
        run(argv)


if __name__ == "__main__":
    main()
