"""`topicsd export --follow` to an object store: the command, stopped and killed in the middle of a run, and a store that is full."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import topicsd
from fakes.exports import Lake, records
from fakes.object_store import Trouble, a_bucket, trouble
from topicsd.cli.main import main
from topicsd.lake import manifest
from topicsd.lake.storage import Bucket, open_storage

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.slow
PATIENCE_S = 60
BEFORE, MORE = 2000, 7  # records that the first run finds, and that come later


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with a_bucket("lake") as options:
        yield options


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.write("alpha", records(1, BEFORE, 1000))  # an object of its own
    return made


def environment(options: dict[str, Any]) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": options["aws_endpoint"], "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
    }  # fmt: skip


def seqs(url: str, options: dict[str, Any]) -> list[int]:
    return list(topicsd.scan(url, columns=["seq"], storage_options=options).read_all()["seq"].to_pylist())


class Following:
    """The command at work. `held`: a request is on its way to the store, which does not answer it before `proxy.release` is set."""

    def __init__(self, lake: Lake, url: str, proxy: Trouble) -> None:
        self._proxy, self.held = proxy, threading.Event()
        command = [sys.executable, "-m", "topicsd.cli.main", "export", "--to", url, "--data-dir", str(lake.data), "--follow", "--interval-ms", "20"]
        env = os.environ | environment({"aws_endpoint": proxy.endpoint})
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def line(self) -> dict[str, Any]:
        """The report of one run."""
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def hold(self, where: str) -> None:
        """Have the next put of such a name wait."""

        def plan(method: str, path: str, _number: int) -> str:
            if method != "PUT" or where not in path or self.held.is_set():
                return ""
            self.held.set()
            return "slow"

        self._proxy.plan = plan

    def end(self) -> tuple[int, str]:
        _, told = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, told


@pytest.mark.parametrize("where", ["/parts/", "/manifests/"])
def test_who_is_told_to_stop_in_the_middle_of_a_run_ends_it_first(lake: Lake, options: dict[str, Any], tmp_path: Path, where: str) -> None:
    url = f"s3://lake/{tmp_path.name}"
    with trouble(options) as (proxy, _):
        following = Following(lake, url, proxy)
        assert (following.line()["segments"], len(seqs(url, options))) == (1, BEFORE)
        following.hold(where)
        lake.write("alpha", records(BEFORE + 1, MORE))
        assert following.held.wait(PATIENCE_S)
        following.process.send_signal(signal.SIGTERM)
        proxy.release.set()
        assert following.end() == (0, "")
    assert seqs(url, options) == list(range(1, BEFORE + MORE + 1))


@pytest.mark.parametrize("where", ["/parts/", "/manifests/"])
def test_who_is_killed_in_the_middle_of_a_run_leaves_the_export_as_it_was_and_the_next_goes_on(
    lake: Lake, options: dict[str, Any], tmp_path: Path, where: str
) -> None:
    url = f"s3://lake/{tmp_path.name}"
    with trouble(options) as (proxy, _):
        following = Following(lake, url, proxy)
        following.line()
        following.hold(where)
        lake.write("alpha", records(BEFORE + 1, MORE))
        assert following.held.wait(PATIENCE_S)
        following.process.kill()
        assert following.end()[0] == -signal.SIGKILL
        proxy.release.set()
        assert seqs(url, options) == list(range(1, BEFORE + 1))
        again = Following(lake, url, proxy)
        report = again.line()
        again.process.send_signal(signal.SIGTERM)
        assert again.end() == (0, "")
    assert (report["segments_copied"], report["manifest"], report["changed"]) == (1, 2, True)
    assert report["bytes_copied"] < 100_000 and seqs(url, options) == list(range(1, BEFORE + MORE + 1))


@pytest.mark.parametrize("answer", ["507", "400 EntityTooLarge", "403 QuotaExceeded"])
def test_a_full_store_commits_nothing_says_so_and_the_next_run_does_it(
    lake: Lake, options: dict[str, Any], tmp_path: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topicsd.objects.WAIT_S", 0.001)
    url = f"s3://lake/{tmp_path.name}"
    with trouble(options) as (proxy, through):
        for name, value in environment(through).items():
            monkeypatch.setenv(name, value)
        proxy.plan = lambda method, _path, _number: answer if method == "PUT" else ""
        command = ["export", "--to", url, "--data-dir", str(lake.data)]
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2 and url in done.output and answer.split()[-1] in done.output, done.output
        found = open_storage(url, options)
        assert isinstance(found, Bucket) and manifest.latest(found) is None
        proxy.plan = lambda *_: ""
        assert CliRunner().invoke(main, command).exit_code == 0
    assert len(seqs(url, options)) == BEFORE


def test_who_follows_says_that_a_run_has_failed_and_goes_on(lake: Lake, options: dict[str, Any], tmp_path: Path) -> None:
    url = f"s3://lake/{tmp_path.name}"
    with trouble(options) as (proxy, _):
        following = Following(lake, url, proxy)
        following.line()
        proxy.plan = lambda method, _path, _number: "400 EntityTooLarge" if method == "PUT" else ""
        lake.write("alpha", records(BEFORE + 1, MORE))
        assert following.process.stderr is not None
        told = following.process.stderr.readline()
        assert told.startswith(f"topicsd: {url}/parts/") and "EntityTooLarge" in told
        assert len(seqs(url, options)) == BEFORE
        proxy.plan = lambda *_: ""
        while following.line()["segments"] == 1:
            pass
        following.process.send_signal(signal.SIGTERM)
        assert following.end()[0] == 0
    assert seqs(url, options) == list(range(1, BEFORE + MORE + 1))


def test_who_follows_into_a_place_that_can_not_be_is_told_so_at_once(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["export", "--to", str(tmp_path / "file/x"), "--data-dir", str(lake.data), "--follow"])
    assert done.exit_code == 2 and "Not a directory" in done.output
