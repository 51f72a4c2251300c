"""rankloom: a distributed job inside one process, for tests. The bridge to PyTorch is rankloom.torch."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("rankloom")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
