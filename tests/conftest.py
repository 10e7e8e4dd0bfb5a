"""What all tests share: the Hypothesis profiles and the real input that lies beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fakes.faulty_files import FaultyFiles

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

# No deadline: a loaded machine is no bug. CI draws the same examples each time; `HYPOTHESIS_PROFILE=thorough` searches on.
settings.register_profile("dev", deadline=None, max_examples=100, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True, database=None)
settings.register_profile("thorough", parent=settings.get_profile("dev"), max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real input files; skip the test where the checkout has none beside it."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("no real input: there is no ../shared/data beside this checkout")
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the top of the checkout."""
    return ROOT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many images of a disk after a power cut were made: a sweep that has become short must not look like one that passes."""
    if FaultyFiles.images:
        terminalreporter.write_line(f"{FaultyFiles.images:,} crash images were made and recovered")
