"""`POST /v0/admin/export` against a whole server."""

import json
from pathlib import Path

import pytest

import topicsd
from fakes.object_store import a_bucket
from fakes.server import Server, answer

pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(300)]


def test_an_export_is_made_by_the_server_and_says_how_far_behind_it_is(tmp_path: Path) -> None:
    to = tmp_path / "export"
    with Server(tmp_path) as server:
        server.ready()
        for n in range(5):
            server.write("a", n)
            server.write("b.c", n)
        status, told = server.ask("POST", "/v0/admin/export", {"to": str(to), "topics": ["a"], "seal": True})
        assert (status, told["topics"], told["lag_records"]) == (200, 1, 0)
        assert [json.loads(row["data"]) for row in topicsd.scan(to).read_all().to_pylist()] == [0, 1, 2, 3, 4]
        server.write("a", 5)
        status, told = server.ask("POST", "/v0/admin/export", {"to": str(to)})
        assert (status, told["lag_records"]) == (200, 6)  # one of a, all of b.c: nothing was sealed
        status, told = server.ask("POST", "/v0/admin/export", {"to": str(to), "topics": "a,b.*", "seal": True})
        assert (status, told["topics"], told["lag_records"]) == (200, 2, 0)
        metrics = server.ask("GET", "/v0/metrics")[1].decode()
        assert "topics_exports_total 3" in metrics and "topics_export_lag_records 0" in metrics


def test_an_export_goes_to_an_object_store_that_the_servers_environment_opens(tmp_path: Path) -> None:
    with a_bucket("lake") as options:
        opened = {"AWS_ENDPOINT_URL": options["aws_endpoint"], "AWS_REGION": "us-east-1"}
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "hush-hush"}
        with Server(tmp_path, **opened, **keys) as server:
            server.ready()
            for n in range(5):
                server.write("a", n)
            status, told = server.ask("POST", "/v0/admin/export", {"to": "s3://lake/x", "seal": True})
            assert (status, told["manifest"], told["lag_records"]) == (200, 1, 0)
            found = topicsd.scan("s3://lake/x", columns=["data"], storage_options=options).read_all().to_pylist()
            assert [json.loads(row["data"]) for row in found] == [0, 1, 2, 3, 4]
            server.write("a", 5)
            since = "s3://lake/x/manifests/00000000000000000001.jsonl"
            status, told = server.ask("POST", "/v0/admin/export", {"to": "s3://lake/new", "seal": True, "since": since})
            assert (status, told["lag_records"]) == (200, 0)
            found = topicsd.scan("s3://lake/new", columns=["seq"], storage_options=options).read_all().to_pylist()
            assert found == [{"seq": 6}]
            status, told = server.ask("POST", "/v0/admin/export", {"to": "s3://nosuchbucket/x"})
            assert status == 400 and "hush" not in json.dumps(told)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "to"), ({"to": "relative"}, "to"), ({"to": "ftp://bucket/x"}, "to"), ({"to": "/x", "topics": []}, "topics"),
        ({"to": "/x", "topics": ""}, "topics"), ({"to": "/x", "topics": ["a*b"]}, "topics"), ({"to": "/x", "topics": ["a,b"]}, "topics"),
        ({"to": "/x", "seal": 1}, "seal"), ({"to": "/x", "since": 5}, "since"), ({"to": "/proc/nowhere"}, "to"),
    ],
)  # fmt: skip
def test_what_can_not_be_exported_is_a_400_that_names_the_member(shared_server: Server, body: dict[str, object], field: str) -> None:
    status, told = shared_server.ask("POST", "/v0/admin/export", body)
    assert (status, told["error"]["code"], told["error"]["detail"]["field"]) == (400, "invalid_request", field)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory):
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server.ready()


def test_it_needs_the_scope_admin_for_all_topics(tmp_path: Path) -> None:
    with Server(tmp_path, TOPICS_API_KEYS="reader:read,mine:admin:my.,boss") as server:
        server.until(lambda: server.ask("GET", "/readyz")[0] == 200)
        found = {}
        for key in ("reader", "mine", "boss"):
            body = json.dumps({"to": str(tmp_path / "export")}).encode()
            head = f"POST /v0/admin/export HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
            with server.connect() as line:
                line.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                found[key] = answer(line)[0]
        assert found == {"reader": 403, "mine": 403, "boss": 200}
