"""Runs the command from its folder: python3 tools/rankloom_command."""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

from rankloom_command.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
