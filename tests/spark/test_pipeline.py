"""`make pipeline` over a part of the real input: a standalone cluster, an executor, a worker and the writer killed, a clean audit at the end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parent.parent.parent
DATA = Path(os.environ.get("PIPELINE_DATA", ROOT.parent / "shared" / "data"))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no input: {DATA} is not there")
def test_real_input_goes_to_a_lake_to_answers_and_back(java: None, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "ci" / "pipeline.py"), "--data", str(DATA), "--flights", "20000", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["step"] for step in steps if not step.get("ok", True)] == [] and steps[-1]["step"] == "done"
    assert steps[-1]["records"] == 22_017 and "<polyline" in (tmp_path / "flights.svg").read_text()
