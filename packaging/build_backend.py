"""The build backend of `pip wheel .` and `pip install .`: meson-python, with the libraries that the extension module needs put into the wheel.

These libraries lie in rankloom/torch/_libs, which is the extension's RPATH (bridge/torch/meson.build), with their licences where Debian's
packages say them. Not carried: what each Linux system with Python has (glibc, libstdc++, libgcc), and what comes with torch.
"""

import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import mesonpy
from mesonpy import (  # noqa: F401 (hooks of PEP 517 and PEP 660)
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

FOLDER = "rankloom/torch/_libs"
TORCHS = re.compile(r"lib(?:torch|c10|shm)")
SYSTEMS = re.compile(r"(?:ld-linux.*|linux-vdso|lib(?:c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so(?:\.\d+)*")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = mesonpy.build_wheel(wheel_directory, config_settings, metadata_directory)
    if sys.platform == "linux":
        carry_libraries(pathlib.Path(wheel_directory) / name)
    return name


def libraries_of(module):
    """Name -> path of the libraries that `module` loads, those of the system and torch's left out, which are not to be found."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if not any(pathlib.Path(folder).glob("libtorch*.so"))]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}
    lines = subprocess.run(["ldd", module], capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
    missing = [match.group(1) for line in lines if (match := re.match(r"\s*(\S+) => not found", line)) and not TORCHS.match(match.group(1))]
    if missing:
        print(f"build_backend: not found, and not in the wheel: {', '.join(missing)}", file=sys.stderr)
    found = [match for line in lines if (match := re.match(r"\s*(\S+) => (/\S+)", line))]
    left_out = [name for name, _ in (match.groups() for match in found) if SYSTEMS.fullmatch(name) or TORCHS.match(name)]
    return {name: pathlib.Path(path) for name, path in (match.groups() for match in found) if name not in left_out}


def licences_of(libraries):
    """Name of a file -> text, of the Debian packages that the libraries are from, as far as they are from any."""
    if shutil.which("dpkg-query") is None:
        print("build_backend: no dpkg-query here, so the wheel has no licences of the libraries that it carries", file=sys.stderr)
        return {}
    licences = {}
    for path in sorted({path.resolve() for path in libraries}):
        # With /usr merged, a package may know its file under the other name.
        for name in path, pathlib.Path(str(path).removeprefix("/usr")):
            run = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True, check=False)
            package = run.stdout.split(":")[0]
            text = pathlib.Path("/usr/share/doc", package, "copyright")
            if run.returncode == 0 and text.is_file():
                licences[f"{package}.txt"] = text.read_bytes()
                break
    return licences


def carry_libraries(wheel):
    with zipfile.ZipFile(wheel) as archive:
        contents = {info: archive.read(info) for info in archive.infolist()}
    record = next(info for info in contents if info.filename.endswith(".dist-info/RECORD"))
    lines = contents.pop(record).decode().splitlines()
    libraries = {}
    with tempfile.TemporaryDirectory() as folder:
        for info, data in contents.items():
            if info.filename.endswith(".so"):
                module = pathlib.Path(folder, "module.so")
                module.write_bytes(data)
                libraries.update(libraries_of(module))
    added = {f"{FOLDER}/{name}": path.read_bytes() for name, path in sorted(libraries.items())}
    added |= {f"{FOLDER}/licences/{name}": text for name, text in sorted(licences_of(libraries.values()).items())}
    for name, data in added.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.insert(0, f"{name},sha256={digest},{len(data)}")
        info = zipfile.ZipInfo(name, date_time=record.date_time)
        info.external_attr = (0o100755 if name.count("/") == 3 else 0o100644) << 16
        contents[info] = data
    contents[record] = "".join(f"{line}\n" for line in lines).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in contents.items():
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
