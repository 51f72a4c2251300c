"""Every test starts and ends without rankloom behind PyTorch's names."""

import threading
from collections.abc import Iterator

import pytest
import rankloom.torch


@pytest.fixture(params=["parallel", "fifo", "seed 7"])
def seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Of run(): the test runs in each gear."""
    if request.param == "parallel":
        monkeypatch.setenv("RANKLOOM_SCHEDULE", "free")
    return 7 if request.param == "seed 7" else None


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    before = threading.active_count()
    yield
    rankloom.torch.uninstall()
    assert threading.active_count() <= before, f"threads are left: {threading.enumerate()}"
