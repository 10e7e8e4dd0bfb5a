"""`format("topicsd")` from a live server: the same columns as from an export, by diff, with a token."""

from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server, url

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]


def write(server: Server, topic: str, first: int, count: int) -> None:
    records = [{"data": {"n": n, "t": "é"}, "tag": f"t{n % 3}", "node": "n1", "meta": {"k": str(n)}} for n in range(first, first + count)]
    status, answer = server.ask("POST", f"/v0/topics/{topic}", {"records": records})
    assert status < 300 and answer["first_seq"] == first


def drain(stream: Any, folder: Path) -> list[tuple[str, int]]:
    got: list[tuple[str, int]] = []

    def take(frame: Any, _batch: int) -> None:
        got.extend((row.topic, row.seq) for row in frame.select("topic", "seq").collect())

    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return sorted(got)


def test_a_batch_of_a_server_has_every_column_of_every_record(spark: Any, server: Server) -> None:
    write(server, "lb.a", 1, 2500)
    write(server, "lb.b", 1, 3)
    found = spark.read.format("topicsd").options(url=url(server), topics="lb.*", maxPartitionBytes="60000").load()
    assert found.rdd.getNumPartitions() > 1
    rows = {(row.topic, row.seq): row for row in found.collect()}
    assert sorted(rows) == [("lb.a", seq) for seq in range(1, 2501)] + [("lb.b", seq) for seq in range(1, 4)]
    row = rows["lb.a", 7]
    assert (row.data, row.tag, row.node, row.meta, row._kind) == ('{"n": 7, "t": "\\u00e9"}', "t1", "n1", {"k": "7"}, "record")
    assert (row.seq_end, row._err, row._raw) == (None, None, None) and row.ts is not None


def test_a_stream_of_a_server_goes_on_where_it_stopped(spark: Any, server: Server, tmp_path: Path) -> None:
    write(server, "ls.a", 1, 30)

    def stream(**options: str) -> Any:
        return spark.readStream.format("topicsd").options(url=url(server), topics="ls.*", **options).load()

    assert drain(stream(maxRecordsPerTrigger="7"), tmp_path) == [("ls.a", seq) for seq in range(1, 31)]
    write(server, "ls.a", 31, 5)
    write(server, "ls.b", 1, 2)
    assert drain(stream(), tmp_path) == [("ls.a", seq) for seq in range(31, 36)] + [("ls.b", 1), ("ls.b", 2)]
    assert server.ask("DELETE", "/v0/topics/ls.b")[0] == 200
    write(server, "ls.b", 1, 1)
    assert drain(stream(), tmp_path) == [("ls.b", 1), ("ls.b", 3)]  # behind the old one's last: a row that says so
    assert drain(stream(columns="topic,seq"), tmp_path / "plain") == [*(("ls.a", seq) for seq in range(1, 36)), ("ls.b", 1)]


def test_what_a_server_has_evicted_before_a_first_read_is_a_row_that_fails_nothing(spark: Any, server: Server, tmp_path: Path) -> None:
    assert server.ask("PUT", "/v0/topics/le", {"cap_records": 10})[0] < 300
    write(server, "le", 1, 100)
    source = {"url": url(server), "topics": "le"}
    rows = spark.read.format("topicsd").options(**source).load().collect()
    assert [(row.seq, row.seq_end, row._err) for row in rows if row._kind == "gap"] == [(1, 90, "cap")] and len(rows) == 11
    plain = spark.read.format("topicsd").options(**source, columns="topic,seq").load()
    assert sorted(row.seq for row in plain.collect()) == list(range(91, 101))
    stream = spark.readStream.format("topicsd").options(**source, maxRecordsPerTrigger="4")
    assert drain(stream.load(), tmp_path / "rows") == [("le", 1), *(("le", seq) for seq in range(91, 101))]
    assert drain(stream.option("columns", "topic,seq").load(), tmp_path / "plain") == [("le", seq) for seq in range(91, 101)]


def test_a_stream_whose_offset_retention_has_passed_fails_or_has_a_gap(spark: Any, server: Server, tmp_path: Path) -> None:
    assert server.ask("PUT", "/v0/topics/lr", {"cap_records": 10})[0] < 300
    write(server, "lr", 1, 5)

    def stream(**options: str) -> Any:
        return spark.readStream.format("topicsd").options(url=url(server), topics="lr", **options).load()

    assert len(drain(stream(), tmp_path)) == 5
    write(server, "lr", 6, 30)
    with pytest.raises(Exception, match="topic lr, seqs 6 to "):
        drain(stream(), tmp_path)
    got = drain(stream(failOnDataLoss="false"), tmp_path)
    assert got[0] == ("lr", 6) and got[1:] == [("lr", seq) for seq in range(got[1][1], 36)]


def test_a_server_that_wants_a_token_gets_it(spark: Any, tmp_path: Path) -> None:
    with Server(tmp_path, TOPICS_API_KEYS="secret") as guarded:
        guarded.until(lambda: guarded.port_file.exists() and guarded.ask("GET", "/readyz")[0] == 200)
        options = {"url": url(guarded), "topics": "t"}
        with pytest.raises(Exception, match="401"):
            spark.read.format("topicsd").options(**options).load().count()
        assert spark.read.format("topicsd").options(**options, token="secret").load().count() == 0
