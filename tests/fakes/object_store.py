"""An object store in this process (moto), with an empty bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def a_bucket(name: str) -> Iterator[dict[str, Any]]:
    """Make the bucket; give what reaches it as options of obstore. Skips the test where a library is absent."""
    pytest.importorskip("obstore")
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys).create_bucket(Bucket=name)
        yield {"aws_endpoint": f"http://{host}:{port}", "aws_region": "us-east-1", "client_options": {"allow_http": True}, **keys}
    finally:
        server.stop()
