"""The needs of a wheel on the machine where it is installed: torch, of the minor version that it was built for."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import rankloom.torch
import torch
from rankloom.torch import _built_for, _torch_version

PACKAGE = pathlib.Path(rankloom.torch.__file__).parent
SYSTEMS = re.compile(r"(?:ld-linux.*|lib(?:c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so(?:\.\d+)*")


def run_python(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def needed(library: pathlib.Path) -> set[str]:
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def test_the_wheel_carries_each_library_that_the_system_may_lack() -> None:
    [module] = PACKAGE.glob("_ext.*.so")
    carried = {path.name: path for path in (PACKAGE / "_libs").glob("*.so*")}
    of_torch = {path.name for path in (pathlib.Path(torch.__file__).parent / "lib").iterdir()}
    everything = set().union(*(needed(path) for path in [module, *carried.values()]))
    assert {name for name in everything - carried.keys() - of_torch if not SYSTEMS.fullmatch(name)} == set()
    assert set(carried) <= everything
    assert any(name.startswith("libtbb.so") for name in carried)
    licences = {path.name for path in (PACKAGE / "_libs" / "licences").iterdir()}
    assert not os.path.exists("/usr/bin/dpkg-query") or any(name.startswith("libtbb") for name in licences)


def test_the_carried_libraries_are_those_that_are_loaded() -> None:
    done = run_python("import rankloom.torch; print(open('/proc/self/maps').read())")
    assert done.returncode == 0, done.stderr
    ours = set(re.findall(r"(/\S*/lib(?:absl|boost|tbb|hwy|protobuf)[^/\s]*)", done.stdout))
    assert len(ours) > 3
    assert {path for path in ours if not path.startswith(f"{PACKAGE}/_libs/")} == set()


def test_paths_of_the_machine_that_built_it_are_not_in_it() -> None:
    [module] = PACKAGE.glob("_ext.*.so")
    text = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", text) == ["$ORIGIN/_libs:$ORIGIN/../../torch/lib"]


def test_a_torch_of_another_minor_version_is_refused() -> None:
    text = (
        r"rankloom was built for torch 2\.13 \(2\.13\.0\+cpu\), and the torch here is 2\.12\.1\. "
        r'Either: pip install "torch==2\.13\.\*"; or build rankloom for the torch here, in a checkout: pip install '
    )
    with pytest.raises(ImportError, match=text):
        _torch_version.check("2.12.1", "2.13.0+cpu")
    with pytest.raises(ImportError, match=r"torch here is 2\.1\.0"):
        _torch_version.check("2.1.0", "2.13.0")
    _torch_version.check("2.13.2+cu130", "2.13.0+cpu")
    assert torch.__version__ == _built_for.TORCH


def test_it_is_refused_before_the_extension_is_loaded() -> None:
    done = run_python("import torch; torch.__version__ = '2.99.0'; import rankloom.torch")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: rankloom was built for torch {_built_for.TORCH.rsplit('.', 1)[0]} (")
    assert "_ext" not in done.stderr


def test_an_extension_that_does_not_load_is_told_with_both_versions() -> None:
    done = run_python("import sys; sys.modules['rankloom.torch._ext'] = None; import rankloom.torch")
    text = (
        rf"ImportError: rankloom, which was built for torch {re.escape(_built_for.TORCH)}, does not load under torch {re.escape(torch.__version__)}: "
        r".*rankloom\.torch\._ext.*\. If this torch is another build than that one: build rankloom for the torch here, in a checkout: pip install "
    )
    assert done.returncode == 1 and re.match(text, done.stderr.splitlines()[-1]), done.stderr
