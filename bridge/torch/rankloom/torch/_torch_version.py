"""Refuses another torch than the one that the extension module was built for; to be imported before that module.

C++ extensions fit one minor version of torch: under another one they fail to load, by the name of some C++ symbol, or do harm.
"""

from __future__ import annotations

import torch

from rankloom.torch._built_for import TORCH


def check(have: str, built_for: str) -> None:
    """Versions of torch, as 2.13.0+cpu. Raises ImportError unless major and minor version are equal."""
    minor = _minor(built_for)
    if _minor(have) != minor:
        raise ImportError(
            f"rankloom was built for torch {minor} ({built_for}), and the torch here is {have}. "
            f'Either: pip install "torch=={minor}.*"; '
            "or build rankloom for the torch here, in a checkout: pip install --no-build-isolation --no-deps --force-reinstall ."
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


check(torch.__version__, TORCH)
