"""Every test starts and ends without rankloom behind PyTorch's names."""

import threading
from collections.abc import Iterator

import pytest
import rankloom.torch


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    before = threading.active_count()
    yield
    rankloom.torch.uninstall()
    assert threading.active_count() <= before, f"threads are left: {threading.enumerate()}"
