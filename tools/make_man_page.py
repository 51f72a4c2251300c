#!/usr/bin/env python3
"""Writes the man page of the command `rankloom`.

    tools/make_man_page.py OUTPUT VERSION
"""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rankloom_command import command, man  # noqa: E402

if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(man.man_page(command.parser(), sys.argv[2]))
