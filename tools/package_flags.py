#!/usr/bin/env python3
"""Prints what pkg-config says of packages whose graph is too tangled for it: it walks every path, and reads each package once here.

    tools/package_flags.py PKG_CONFIG [--static] PACKAGE...

A line of arguments for the compiler, one for the linker: libraries before those that they need. Exits with 1 and names the package
that is missing. --static: archives by their paths, where there are any.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys


class MissingError(Exception):
    pass


def ask(pkg_config, *arguments):
    run = subprocess.run([*shlex.split(pkg_config), *arguments], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise MissingError(run.stderr.strip())
    return run.stdout.strip()


def as_units(flags):
    """The flags, with what stands between --push-state and --pop-state as one string."""
    text = shlex.join(flags)
    units = re.split(r"(\S*-Wl,--push-state.*?-Wl,--pop-state)", text)
    return [part for i, unit in enumerate(units) for part in ([unit] if i % 2 else shlex.split(unit))]


class Package:
    """One file NAME.pc: .requires, names of packages; .libs and .cflags, arguments."""

    def __init__(self, file):
        fields, variables = {}, {"pcfiledir": str(file.parent)}
        for line in file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            found = re.match(r"\s*([\w.]+)\s*([=:])\s*(.*?)\s*(?:#.*)?$", line)
            if found:
                name, kind, value = found.groups()
                (variables if kind == "=" else fields)[name] = re.sub(r"\$\{(\w+)\}", lambda m: variables.get(m.group(1), ""), value)
        required = re.sub(r"[<>!=]+\s*[^\s,]+", " ", f"{fields.get('Requires', '')} {fields.get('Requires.private', '')}")
        self.requires = re.split(r"[\s,]+", required.strip(" ,")) if required.strip(" ,") else []
        self.libs = as_units(shlex.split(fields.get("Libs", "")) + shlex.split(fields.get("Libs.private", "")))
        self.cflags = shlex.split(fields.get("Cflags", ""))


def search_path(pkg_config):
    """A pkgconf for another machine, aarch64-linux-gnu-pkg-config say, knows that machine's folders as those of its personality."""
    paths = os.environ.get("PKG_CONFIG_PATH", ""), os.environ.get("PKG_CONFIG_LIBDIR") or own_folders(pkg_config)
    return [pathlib.Path(folder) for path in paths for folder in path.split(os.pathsep) if folder]


def own_folders(pkg_config):
    try:
        found = re.search(r"^DefaultSearchPaths: (.*)$", ask(pkg_config, "--dump-personality"), re.MULTILINE)
    except MissingError:  # of freedesktop.org, which has no personalities
        found = None
    return os.pathsep.join(found.group(1).split()) if found else ask(pkg_config, "--variable=pc_path", "pkg-config")


def read_all(pkg_config, names):
    """The packages `names` and all that they require, each behind those that require it."""
    folders = search_path(pkg_config)
    seen, order = set(), []

    def visit(name):
        seen.add(name)
        file = next((folder / f"{name}.pc" for folder in folders if (folder / f"{name}.pc").is_file()), None)
        if file is None:
            ask(pkg_config, "--exists", "--print-errors", name)  # says where it looked
            raise MissingError(f"no file {name}.pc in {', '.join(map(str, folders))}")
        package = Package(file)
        for other in package.requires:
            if other not in seen:
                visit(other)
        order.append((package.cflags, package.libs))

    for name in names:
        if name not in seen:
            visit(name)
    return list(reversed(order))


def compiler_flags(packages):
    flags = [flag for cflags, _ in packages for flag in cflags if flag != "-I/usr/include"]
    return ["-isystem" + flag[2:] if flag.startswith("-I") else flag for flag in dict.fromkeys(flags)]


def linker_flags(packages, static):
    flags = [flag for _, libs in packages for flag in libs]
    folders = list(dict.fromkeys(flag[2:] for flag in flags if flag.startswith("-L")))
    # A library's last place counts: behind all that need it.
    libs = list(reversed(dict.fromkeys(reversed([flag for flag in flags if not flag.startswith("-L")]))))
    if static:
        archives = {flag: folder / f"lib{flag[2:]}.a" for flag in libs for folder in map(pathlib.Path, reversed(folders))
                    if flag.startswith("-l") and (folder / f"lib{flag[2:]}.a").is_file()}
        libs = [str(archives.get(flag, flag)) for flag in libs]
    own = [folder for folder in folders if not re.match(r"(/usr)?/lib\d*(/|$)", folder)]
    return [*(f"-L{folder}" for folder in own), *(f"-Wl,-rpath,{folder}" for folder in own), *libs]


def main():
    pkg_config, *names = sys.argv[1:]
    static = "--static" in names
    names = [name for name in names if name != "--static"]
    try:
        packages = read_all(pkg_config, names)
    except MissingError as missing:
        sys.exit(f"package_flags: {missing}")
    print(*compiler_flags(packages))
    print(*linker_flags(packages, static))


if __name__ == "__main__":
    main()
