"""Bodies: limits, content types, gzip both ways, clients that leave in the middle (A §0.3, CLARIFICATIONS HTTP layer)."""

from __future__ import annotations

import gzip
import json

import pytest

ONE = {"records": [{"data": 1}]}
TEXT = json.dumps(ONE).encode()


@pytest.mark.parametrize("pieces", [[None], [TEXT[:5], None], [TEXT, None], [b"", None], [TEXT[:-1], TEXT[-1:], None]])
def test_a_client_that_leaves_in_the_middle_of_a_body_commits_nothing(run, pieces):
    async def test(house):
        for method, path in (("POST", "/v0/topics/t"), ("PUT", "/v0/topics/t"), ("POST", "/v0/topics/t/delete")):
            answer = await house.ask(method, path, list(pieces))
            assert answer.error == (400, "invalid_request")
        assert house.backend.sent == []

    run(test)


def test_an_empty_body_is_an_object_on_put_and_diff_and_400_elsewhere(run):
    async def test(house):
        assert (await house.ask("PUT", "/v0/topics/t")).status == 201
        assert (await house.ask("POST", "/v0/topics/t/diff")).status == 200
        for path in ("/v0/topics/t", "/v0/topics/t/delete"):
            assert (await house.ask("POST", path)).error == (400, "invalid_request")
            assert (await house.ask("POST", path, b"", content_type=None)).error == (400, "invalid_request")

    run(test)


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/jsonp", "application/json2; charset=utf-8", "text/json", "application/x-www-form-urlencoded"],
)
def test_other_content_types_are_415(run, content_type):
    async def test(house):
        house.backend.make("t")
        for method, path in (
            ("POST", "/v0/topics/t"),
            ("PUT", "/v0/topics/t"),
            ("POST", "/v0/topics/t/diff"),
            ("POST", "/v0/topics/t/delete"),
            ("PUT", "/v0/routers/r"),
            ("POST", "/v0/topics/t/claim"),
            ("POST", "/v0/watch"),
        ):
            assert (await house.ask(method, path, TEXT, content_type=content_type)).error == (415, "unsupported_media_type")

    run(test)


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON;charset=UTF-8; x=y", " application/json ; charset=utf-8"])
def test_json_may_have_any_case_and_parameters(run, content_type):
    async def test(house):
        assert (await house.ask("POST", "/v0/topics/t", ONE, content_type=content_type)).status == 201

    run(test)


def test_a_body_at_the_limit_is_read_and_one_byte_more_is_413(run):
    async def test(house):
        full = TEXT + b" " * (100 - len(TEXT))
        assert (await house.ask("POST", "/v0/topics/t", full)).status == 201
        for body in (full + b" ", [full, b" "], [full + b" " * 500, b"x" * 500]):
            answer = await house.ask("POST", "/v0/topics/t", body)
            assert answer.error == (413, "payload_too_large") and answer.detail == {"limit": 100}
            assert answer.unread == 0  # read on, so that the sender gets to see the answer
        chunked = await house.ask("POST", "/v0/topics/t", [full, b" "], content_length=None, transfer_encoding="chunked")
        assert chunked.error == (413, "payload_too_large")
        assert len(house.backend.sent) == 1

    run(test, max_body_bytes=100)


@pytest.mark.parametrize("packed", [gzip.compress(TEXT, mtime=0), gzip.compress(TEXT[:9], mtime=0) + gzip.compress(TEXT[9:], mtime=0)])
def test_a_gzipped_body_is_taken_whatever_pieces_it_comes_in(run, packed):
    async def test(house):
        for pieces in ([packed], [packed[n : n + 1] for n in range(len(packed))]):
            assert (await house.ask("POST", "/v0/topics/t", pieces, content_encoding="gzip")).status in (200, 201)
        assert (await house.ask("POST", "/v0/topics/t", packed, content_encoding="GZip")).status == 200

    run(test)


def test_a_gzipped_empty_body_is_an_empty_body(run):
    async def test(house):
        nothing = gzip.compress(b"", mtime=0)
        assert (await house.ask("PUT", "/v0/topics/new", nothing, content_encoding="gzip")).status == 201
        assert (await house.ask("POST", "/v0/topics/new/diff", nothing, content_encoding="gzip")).status == 200
        assert (await house.ask("POST", "/v0/topics/new", nothing, content_encoding="gzip")).error == (400, "invalid_request")

    run(test)


def test_a_broken_gzip_stream_is_400_at_every_cut(run):
    async def test(house):
        packed = gzip.compress(TEXT, mtime=0)
        for body in [packed[:n] for n in range(1, len(packed))] + [packed + b"x", b"x" + packed, packed[:15] + b"\xff\xff\xff" + packed[18:], TEXT]:
            assert (await house.ask("POST", "/v0/topics/t", body, content_encoding="gzip")).error == (400, "invalid_request")
        assert house.backend.sent == []

    run(test)


def test_a_zip_bomb_is_413_and_another_encoding_415(run):
    async def test(house):
        bomb = gzip.compress(b" " * 50_000_000 + TEXT, mtime=0)
        assert len(bomb) < 100_000
        assert (await house.ask("POST", "/v0/topics/t", bomb, content_encoding="gzip")).error == (413, "payload_too_large")
        for encoding in ("br", "deflate", "gzip, gzip"):
            assert (await house.ask("POST", "/v0/topics/t", TEXT, content_encoding=encoding)).error == (415, "unsupported_media_type")

    run(test, max_body_bytes=100_000)


@pytest.mark.parametrize(
    "header, packed",
    [
        (None, False),
        ("gzip", True),
        ("GZIP;q=0.5", True),
        ("br, gzip", True),
        ("*", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("", False),
        ("xgzip", False),
    ],
)
def test_a_large_answer_is_gzipped_only_when_asked(run, header, packed):
    async def test(house):
        house.backend.make("t")["records"] = 400
        plain = await house.ask("POST", "/v0/topics/t/diff", {})
        answer = await house.ask("POST", "/v0/topics/t/diff", {}, accept_encoding=header)
        assert (answer.headers.get("content-encoding") == "gzip") is packed
        assert (gzip.decompress(answer.body) if packed else answer.body) == plain.body
        assert answer.headers["content-length"] == str(len(answer.body))
        small = await house.ask("GET", "/v0/topics/t", accept_encoding=header)
        assert "content-encoding" not in small.headers

    run(test)


def test_more_bodies_than_memory_are_told_to_come_back(run):
    async def test(house):
        house.context.budget.bytes, house.context.budget.bytes_max = 90, 100
        answer = await house.ask("POST", "/v0/topics/t", ONE)
        assert answer.error == (429, "throttled") and answer.headers["retry-after"] == "1"
        house.context.budget.bytes = 0
        assert (await house.ask("POST", "/v0/topics/t", b" " * 200 + TEXT)).status == 201  # one is always let in
        assert house.context.budget.bytes == 0

    run(test)
