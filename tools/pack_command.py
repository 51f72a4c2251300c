#!/usr/bin/env python3
"""Packs the command `rankloom` into one file that Python runs: a ZIP archive behind a line that names the interpreter.

    tools/pack_command.py OUTPUT FILE...
"""

import os
import pathlib
import sys
import zipfile

MAIN = """import sys

from rankloom_command.command import main

sys.exit(main(sys.argv[1:]))
"""


def main():
    output, *files = sys.argv[1:]
    with open(output, "wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            # With one date, so that equal files give equal bytes.
            archive.writestr(zipfile.ZipInfo("__main__.py"), MAIN)
            for path in sorted(files):
                name = f"rankloom_command/{pathlib.Path(path).name}"
                archive.writestr(zipfile.ZipInfo(name), pathlib.Path(path).read_bytes(), zipfile.ZIP_DEFLATED)
    os.chmod(output, 0o755)


if __name__ == "__main__":
    main()
