"""The document of all routes: complete, and true to the application (A §9)."""

from __future__ import annotations

import json
import re

from topicsd.api import errors as wire
from topicsd.api import operations
from topicsd.api.app import routes

VERBS = ("get", "put", "post", "delete", "patch")


def real(house):
    """Name the methods of all paths that are served."""
    return {(verb.upper(), path) for path, route in routes(house.context).items() for verb in VERBS if getattr(route, f"on_{verb}", None)}


def test_every_route_has_its_line_in_the_table_and_every_line_its_route(run):
    async def test(house):
        missing = real(house) - set(operations.NUMBERS)
        assert not missing, f"add a line for {sorted(missing)} at the end of OPERATIONS in api/operations.py"
        told = (await house.ask("GET", "/v0/openapi.json")).json
        assert {(verb.upper(), path) for path, each in told["paths"].items() for verb in each} == real(house)

    run(test)


def test_names_are_unique_and_every_reference_leads_somewhere(run):
    async def test(house):
        text = (await house.ask("GET", "/v0/openapi.json")).body.decode()
        told = json.loads(text)
        names = [each["operationId"] for path in told["paths"].values() for each in path.values()]
        assert len(names) == len(set(names)) == len(real(house))
        assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) == set(told["components"]["schemas"])
        links = [
            link["operationId"]
            for path in told["paths"].values()
            for each in path.values()
            for one in each["responses"].values()
            for link in one.get("links", {}).values()
        ]
        assert set(links) <= set(names) and len(links) > 5

    run(test)


def test_a_watch_may_be_lenient_and_its_stream_resumes_by_id(run):
    async def test(house):
        paths = json.loads((await house.ask("GET", "/v0/openapi.json")).body)["paths"]
        assert {(each["in"], each["name"]) for each in paths["/v0/watch"]["post"]["parameters"]} == {("query", "lenient")}
        assert ("header", "Last-Event-ID") in {(each["in"], each["name"]) for each in paths["/v0/watch/{wid}"]["get"]["parameters"]}

    run(test)


def test_every_scope_and_every_error_that_a_line_names_is_one():
    assert {code for each in operations.OPERATIONS for code in each.errors} <= set(wire.STATUS)
    assert len(operations.OPERATIONS) < 96, "the meters have room for so many: METER_OPERATIONS"
    assert len({(each.method, each.path) for each in operations.OPERATIONS}) == len(operations.OPERATIONS)


def test_the_first_lines_are_those_of_the_native_front():
    assert [each.name for each in operations.OPERATIONS[:3]] == ["write", "diff", "state"]


def test_the_document_needs_a_key_where_there_are_keys(run):
    async def test(house):
        assert (await house.ask("GET", "/v0/openapi.json")).error == (401, "unauthorized")
        assert (await house.ask("GET", "/v0/openapi.json", authorization="Bearer r")).status == 200

    run(test, keys="r:read")
