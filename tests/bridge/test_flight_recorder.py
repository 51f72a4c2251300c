"""PyTorch's own analyzer reads our flight records and names what is wrong."""

import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")

CASES = Path(__file__).parents[2] / "build" / "tests" / "collectives" / "flight_dump_cases"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not CASES.exists():
        pytest.skip(f"{CASES} is not built: ./dev build tests/collectives/flight_dump_cases")
    folder = tmp_path_factory.mktemp("flight")
    subprocess.run([CASES, folder], check=True)
    yield folder


@pytest.fixture
def analyze(folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    def run(case: str) -> str:
        output = folder / f"{case}.db"
        # The analyzer's logger is a singleton that does not propagate.
        monkeypatch.setattr(logging.getLogger("Flight Recorder"), "propagate", True)
        with caplog.at_level(logging.INFO):
            caplog.clear()
            fr_trace.main([str(folder / case), "-o", str(output)])
        assert output.exists()
        return caplog.text

    return run


# The analyzer compares all ranks with that whose file it happens to read first, and takes that for right.
ALTERNATIVES = {rank: ({rank}, {0, 1, 2, 3} - {rank}) for rank in range(4)}


def culprits(text: str) -> set[int]:
    return {int(rank) for rank in re.findall(r"Culprit rank (\d+)", text)}


def test_a_good_run_matches(analyze) -> None:
    text = analyze("good")
    assert "Not all ranks joining" not in text
    assert "has errors" not in text
    assert "mismatch" not in text.lower()


def test_the_missing_rank_is_named(analyze) -> None:
    text = analyze("missing")
    assert "Not all ranks joining collective, sequence number: 2" in text
    assert "missing ranks: {2}" in text
    assert "collective: gloo:all_reduce" in text


def test_the_mismatch_is_named(analyze) -> None:
    text = analyze("mismatch")
    assert "Collective sequence number: 2 has errors" in text
    assert "Error type: COLLECTIVE_TYPE_MISMATCH" in text
    assert "'all_reduce'" in text and "'broadcast'" in text
    assert culprits(text) in ALTERNATIVES[1]


def test_the_wrong_size_is_named(analyze) -> None:
    text = analyze("sizes")
    assert "Error type: SIZE_OR_SYNTAX_MISMATCH" in text
    assert "'[[4]]'" in text and "'[[5]]'" in text
    assert culprits(text) in ALTERNATIVES[3]
