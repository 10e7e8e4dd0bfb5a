"""The wheel: what it holds, and that it works where nothing of the checkout is. The extensions in it are those that were built in place."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from fakes.exports import Lake, records

pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = {"topicsd": "topicsd", "topicsd/api": "api", "topicsd/_native": "_native"}


def ran(*command: object, cwd: Path = ROOT, **env: str) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=os.environ | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = list((ROOT / "_native").glob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"))
    assert built, "the extensions are not built in place (make build)"
    folder = tmp_path_factory.mktemp("wheel")
    inside = folder / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / "topicsd/_native"
    inside.mkdir(parents=True)
    for path in built:
        shutil.copy(path, inside)  # younger than their sources: they are not compiled again
    ran(sys.executable, "setup.py", "-q", "build", "--build-base", folder / "build", "bdist_wheel", "-d", folder, "-b", folder / "dist")
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_has_every_module_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = set()
    for package, folder in FOLDERS.items():
        wanted |= {f"{package}/{path.relative_to(ROOT / folder)}" for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts}
    assert {name for name in names if name.endswith(".py")} == wanted
    modules = {name.split(".")[0].rpartition("/")[2] for name in names if name.endswith(".so")}
    assert modules == {path.stem for path in (ROOT / "_native").glob("*.pyx")}
    assert {"topicsd/py.typed", "topicsd/_native/scan.pyi", "topicsd/_native/layout.h"} <= names
    told = Parser().parsestr(zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("/METADATA"))).decode())
    assert {"spark", "iceberg", "connect", "s3"} <= set(told.get_all("Provides-Extra") or [])


def test_a_fresh_environment_with_the_wheel_exports_scans_and_knows_the_source(wheel: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write("a", records(1, 30))
    ran(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    there = Path(ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    ran(sys.executable, "-m", "pip", "-q", "--python", python, "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    (there / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # what it depends on, behind it on the path
    topicsd = tmp_path / "venv/bin/topicsd"
    report = json.loads(ran(topicsd, "export", "--to", lake.to, "--data-dir", lake.data, cwd=tmp_path))
    assert (report["manifest"], report["segments_copied"]) == (1, 1)
    code = f"""
import topicsd
print(topicsd.__file__)
print(topicsd.scan({str(lake.to)!r}, columns=["seq"]).read_all().num_rows)
try:
    import pyspark
except ImportError:
    print("topicsd")
else:
    from topicsd.spark.source import TopicsDataSource
    print(TopicsDataSource.name())
"""
    place, rows, name = ran(python, "-c", code, cwd=tmp_path).split()
    assert Path(place).is_relative_to(there) and (rows, name) == ("30", "topicsd")
    assert "ingest" in ran(topicsd, "spark", "-h", cwd=tmp_path)
