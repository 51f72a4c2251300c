"""Refuses another torch than the one that the extension module was built for; to be imported before that module.

C++ extensions fit one minor version of torch: under another one they fail to load, by the name of some C++ symbol, or do harm.
"""

from __future__ import annotations

import importlib

import torch

from rankloom.torch._built_for import TORCH

_AGAIN = "build rankloom for the torch here, in a checkout: pip install --no-build-isolation --no-deps --force-reinstall ."


def check(have: str, built_for: str) -> None:
    """Versions of torch, as 2.13.0+cpu. Raises ImportError unless major and minor version are equal."""
    minor = _minor(built_for)
    if _minor(have) != minor:
        raise ImportError(
            f"rankloom was built for torch {minor} ({built_for}), and the torch here is {have}. "
            f'Either: pip install "torch=={minor}.*"; or {_AGAIN}'
        )


def load(have: str, built_for: str) -> None:
    """Imports the extension module. Raises ImportError that names both versions if it does not load, as under a build of
    torch of the same version but another make.
    """
    check(have, built_for)
    try:
        importlib.import_module("rankloom.torch._ext")
    except ImportError as error:
        raise ImportError(
            f"rankloom, which was built for torch {built_for}, does not load under torch {have}: {error}. "
            f"If this torch is another build than that one: {_AGAIN}"
        ) from error


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


load(torch.__version__, TORCH)
