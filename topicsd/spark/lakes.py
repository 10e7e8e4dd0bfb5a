"""Which lake table is meant: its folder, its format, its catalog; and the quarantine beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from topicsd.spark.delta import DeltaLake
from topicsd.spark.iceberg import IcebergLake
from topicsd.spark.tables import LakeTable, TableError, envelope, quarantine

if TYPE_CHECKING:
    import pyarrow

FORMATS = ("delta", "iceberg")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True)
class Lake:
    """A table's folder. kind: delta or iceberg; empty: what is there, and delta where nothing is. catalog: of Iceberg (iceberg.py)."""

    path: Path
    kind: str = ""
    catalog: str = ""

    def __post_init__(self) -> None:
        if URL.match(str(self.path)):  # a Path has one of its slashes
            raise TableError(
                f"{self.path}: a lake table stands in a folder (of a machine, or mounted on all), an object store is for exports; a stream of "
                'format("topicsd") goes into a table there through Spark\'s own writers'
            )

    @property
    def format(self) -> str:
        """The format. Raises TableError where the folder has a table of the other one."""
        folders = (self.path, self._beside)  # the quarantine is the first one to be there
        delta = any((folder / "_delta_log").is_dir() for folder in folders)
        iceberg = not delta and any((folder / "metadata").is_dir() for folder in folders)
        found = "delta" if delta else "iceberg" if iceberg else ""
        if self.kind and found and self.kind != found:
            raise TableError(f"{self.path}: a table of the format {found}, not {self.kind}")
        return self.kind or found or ("iceberg" if self.catalog else "delta")

    @property
    def _beside(self) -> Path:
        return self.path.with_name(f"{self.path.name}_quarantine")

    def table(self, payload: pyarrow.DataType | None = None) -> LakeTable:
        """The table."""
        return self._made(self.path.absolute(), envelope(payload))

    def quarantine(self) -> LakeTable:
        """The quarantine beside it."""
        return self._made(self._beside.absolute(), quarantine())

    def _made(self, path: Path, schema: pyarrow.Schema) -> LakeTable:
        return IcebergLake(path, schema, self.catalog) if self.format == "iceberg" else DeltaLake(path, schema)


def lake_of(place: Path | Lake) -> Lake:
    """A folder as a lake table."""
    return place if isinstance(place, Lake) else Lake(place)
