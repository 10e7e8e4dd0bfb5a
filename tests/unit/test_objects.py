"""What is promised of an object store that answers 503, twice, not at all, too late, or in halves."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.object_store import Trouble, a_bucket, trouble
from topicsd.objects import CHUNK_BYTES, ObjectError, ObjectStore, TakenError, is_url, storage_options

TROUBLES = ("503", "lost", "twice", "cut")


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    with a_bucket("objects") as options:
        yield options


@pytest.fixture
def proxied(bucket: dict[str, Any], tmp_path: Path) -> Iterator[tuple[Trouble, ObjectStore]]:
    with trouble(bucket) as (proxy, options):
        yield proxy, ObjectStore(f"s3://objects/{tmp_path.name}", options, retries=1, pause=lambda _: None)


@pytest.mark.parametrize("what", TROUBLES)
def test_an_object_is_created_once_whatever_becomes_of_the_first_try(proxied: tuple[Trouble, ObjectStore], what: str) -> None:
    proxy, store = proxied
    proxy.plan = lambda method, _path, _number: what if method == "PUT" and sum(asked[0] == "PUT" for asked in proxy.asked) == 0 else ""
    store.create("a", b"mine")  # also where the first try was done, and the second finds the name taken
    assert store.read("a") == b"mine"
    with pytest.raises(TakenError, match="is there already"):
        store.create("a", b"else")
    assert store.read("a") == b"mine"


@pytest.mark.slow
@pytest.mark.parametrize("what", TROUBLES)
def test_what_is_read_is_whole(proxied: tuple[Trouble, ObjectStore], what: str) -> None:
    proxy, store = proxied
    whole = random.Random(1).randbytes(3 * CHUNK_BYTES + 5)
    store.put("large", whole)
    tried: set[str] = set()

    def once(method: str, path: str, _number: int) -> str:
        key = f"{method} {path}"
        return "" if key in tried or tried.add(key) else what  # type: ignore[func-returns-value]

    proxy.plan = once
    assert store.read("large") == whole
    assert store.read_range("large", 10, 3 * CHUNK_BYTES) == whole[10 : 3 * CHUNK_BYTES]
    assert store.read_range("large", CHUNK_BYTES, 9 * CHUNK_BYTES) == whole[CHUNK_BYTES:]
    assert (store.read_range("large", 7, 7), store.read_range("large", len(whole), len(whole) + 4)) == (b"", b"")
    assert [found.name for found in store.listed("lar")] == ["large"] and store.size("large") == len(whole)
    assert any(asked[2] == what for asked in proxy.asked)


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_asked_again(bucket: dict[str, Any], tmp_path: Path) -> None:
    with trouble(bucket) as (proxy, options):
        proxy.plan = lambda _method, _path, number: "slow" if number == 0 else ""
        store = ObjectStore(f"s3://objects/{tmp_path.name}", options, timeout="1s", retries=0, pause=lambda _: None)
        store.create("a", b"1")
        assert store.read("a") == b"1" and proxy.asked[0][2] == "slow"


def test_a_store_that_never_answers_is_an_error_without_secrets(bucket: dict[str, Any]) -> None:
    waits: list[float] = []
    with trouble(bucket) as (proxy, options):
        proxy.plan = lambda *_: "503"
        store = ObjectStore("s3://objects/x", options | {"aws_secret_access_key": "hushhush"}, retries=0, pause=waits.append)
        with pytest.raises(ObjectError) as told:
            store.read("a")
    assert "s3://objects/x/a" in str(told.value) and "hushhush" not in f"{told.value!r} {store!r}" and waits == [0.2, 0.4, 0.8]


def test_what_is_not_there_is_told_apart_from_what_fails(proxied: tuple[Trouble, ObjectStore], bucket: dict[str, Any]) -> None:
    _, store = proxied
    for call in (lambda: store.read("no"), lambda: store.size("no"), lambda: store.head("no"), lambda: store.read_range("no", 0, 5)):
        with pytest.raises(FileNotFoundError):
            call()
    store.delete("no")
    assert store.listed() == []
    with pytest.raises(ObjectError, match="bucket"):
        ObjectStore("s3://nosuchbucket/x", bucket).listed()
    with pytest.raises(ObjectError, match="nowhere"):
        ObjectStore("s3://objects/x", {"aws_nowhere": "x"})


def test_places_and_options_are_told_by_their_names() -> None:
    assert is_url("s3://bucket/x") and is_url("gs://b") and not is_url("/a/b") and not is_url(Path("s3:/b")) and not is_url("c:/x")
    assert storage_options({"AWS_Endpoint": "e", "path": "p", "google_service_account": "g"}) == {"aws_endpoint": "e", "google_service_account": "g"}
