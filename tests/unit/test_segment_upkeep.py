"""Rewriting of dead segments and the scrub: nothing alive is lost, every deviation is told once a pass, at a bounded rate."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.faulty_files import FaultyFiles
from oracle import segment_oracle as oracle
from oracle.segment_oracle import DELETED, HOLE, Row
from topicsd._native import frame, segment
from topicsd._native.segment import SegmentError
from topicsd._native.segment_build import Writer
from topicsd.segments import names, rewrite, scrub
from topicsd.segments.names import Place, name_of, place_of
from topicsd.segments.verify import verify_name


def seal(root: Path, topic_id: int, rows: list[Row]) -> Place:
    name = name_of(root, topic_id, rows[0].seq)
    name.folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(name.folder)
    writer.begin(topic_id, rows[0].seq)
    for row in rows:
        writer.add(row.seq, row.ts, row.entry, row.flags, row.count)
    writer.finish()
    return place_of(name)


def rows_of(count: int) -> list[Row]:
    rows = [Row(1 + k, 100 + k, frame.entry(frame.Record(b'"%d"' % k, None, b"t%d" % (k % 7)))) for k in range(count)]
    return [*rows, Row(count + 1, 100 + count, None, HOLE | 1 << 8, 5)]


def delete(place: Place, seqs: list[int]) -> None:
    view = rewrite.view(place)
    segment.set_deleted(place.data.path, [place.data.offset + view.flag_offset(seq) for seq in seqs])


# ---- rewriting


@given(gone=st.sets(st.integers(1, 40)), late=st.sets(st.integers(1, 40), max_size=5))
def test_a_rewrite_keeps_what_lives_and_the_place_and_time_of_everything(
    tmp_path_factory: pytest.TempPathFactory, gone: set[int], late: set[int]
) -> None:
    root, rows = tmp_path_factory.mktemp("data"), rows_of(40)
    old = seal(root, 7, rows)
    delete(old, sorted(gone))

    name, built = rewrite.rewrite(old, root, 1)
    delete(old, sorted(late))
    new = place_of(name)
    segment.set_deleted(new.data.path, rewrite.catch_up(old, new))

    assert verify_name(name).problems == []
    assert built.records == 40 - len(gone)
    before, after = rewrite.view(old), rewrite.view(new)
    for seq in range(1, 46):
        assert after.entry(seq)[0] == before.entry(seq)[0]
        was, now = before.record(seq), after.record(seq)
        assert now == was if was and not was[1] else now is None or now[1]
    assert after.entry(43)[2] == HOLE | 1 << 8


def test_only_a_segment_that_is_almost_dead_and_large_is_worth_it() -> None:
    assert rewrite.worth_it(10, 1000, 1 << 30)
    assert not rewrite.worth_it(11, 1000, 1 << 30)
    assert not rewrite.worth_it(0, 1000, 1 << 30), "that one is dropped"
    assert not rewrite.worth_it(1, 1000, 1000)


def test_a_damaged_segment_is_not_rewritten(tmp_path: Path) -> None:
    place = seal(tmp_path, 7, rows_of(40))
    raw = bytearray(place.data.path.read_bytes())
    raw[300] ^= 1
    place.data.path.write_bytes(raw)
    with pytest.raises(SegmentError):
        rewrite.rewrite(place, tmp_path, 1)
    assert len(list(place.data.path.parent.iterdir())) == 3


def test_every_image_of_a_rewrite_has_the_old_segment_whole_and_the_new_one_whole_or_not_at_all(tmp_path: Path) -> None:
    root, image = tmp_path / "disk", tmp_path / "image"
    place = seal(root, 7, rows_of(40))
    delete(place, list(range(3, 41)))
    files = FaultyFiles(root)
    name, _ = rewrite.rewrite(place, root, 1, files)
    wanted = {kind: name.path(kind).read_bytes() for kind in ("data", "index", "tags")}
    for call in range(len(files.calls) + 1):
        for seed in range(8):
            target = image / f"{call}-{seed}"
            (target / names.topic_folder(7)).mkdir(parents=True)
            files.image(call, seed, target)
            there = {kind: name_of(target, 7, 1, 1).path(kind) for kind in wanted}
            assert all(path.read_bytes() == wanted[kind] for kind, path in there.items() if path.exists())
            assert call < len(files.calls) or all(path.exists() for path in there.values())


# ---- scrub


def run(scrubber: scrub.Scrubber, passes: int = 1, now: int = 0) -> int:
    """Step until so many more passes are done; the time it took."""
    until, start = scrubber.numbers.passes + passes, now
    while scrubber.numbers.passes < until:
        now += scrubber.step(now, 1_000_000 + now)
    return now - start


def store_of(root: Path) -> dict[str, Place]:
    places = {f"alone {topic}": seal(root, topic, rows_of(40)) for topic in (7, 8)}
    (root / "packs").mkdir()
    pack = Writer(root / "packs")
    pack.pack_begin(1)
    for topic in (9, 10):
        pack.begin_in_pack(topic, 1)
        for row in rows_of(5):
            pack.add(row.seq, row.ts, row.entry, row.flags, row.count)
        pack.finish()
    pack.pack_finish()
    return places


def test_a_pass_over_a_sound_store_reads_everything_and_finds_nothing(tmp_path: Path) -> None:
    store_of(tmp_path)
    size = sum(path.stat().st_size for path in names.files_below(tmp_path))
    scrubber = scrub.Scrubber(lambda: scrub.everything_below(tmp_path), bytes_per_second=1000)
    took = run(scrubber)
    assert (scrubber.numbers.segments, scrubber.numbers.problems, scrubber.numbers.bytes) == (4, 0, size)
    assert size <= took <= size + scrub.PASS_PAUSE_MS + 10, "1000 bytes a second"
    assert scrubber.numbers.last_pass_ms > 1_000_000
    assert set(scrubber.numbers.metrics()) >= {"topics_scrub_bytes_total", "topics_scrub_problems_total"}


@pytest.mark.parametrize("kind", ["data", "index", "tags", "pack", "missing"])
def test_damage_is_told_in_each_pass_until_it_is_gone(tmp_path: Path, kind: str) -> None:
    places = store_of(tmp_path)
    path = names.pack_path(tmp_path, 1) if kind == "pack" else getattr(places["alone 8"], "index" if kind == "missing" else kind).path
    raw = path.read_bytes()
    told: list[scrub.Problem] = []
    scrubber = scrub.Scrubber(lambda: scrub.everything_below(tmp_path), 1 << 30, told.append)
    run(scrubber)
    assert told == []
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(raw[:200] + bytes([raw[200] ^ 1]) + raw[201:])
    run(scrubber, 2)
    assert len(told) == 2 and {problem.path for problem in told} == {path} and scrubber.problems == told[:1]
    path.write_bytes(raw)
    run(scrubber)
    assert scrubber.problems == [] and scrubber.numbers.problems == 2 and scrubber.numbers.last_pass_problems == 0


def test_a_flag_byte_that_the_manifest_did_not_count_is_damage(tmp_path: Path) -> None:
    place = seal(tmp_path, 7, rows_of(40))
    delete(place, [3, 4])
    for counted, problems in ((2, 0), (1, 1), (3, 1)):
        scrubber = scrub.Scrubber(lambda counted=counted: [scrub.Item(place, deleted=lambda: counted)], 1 << 30)
        run(scrubber)
        assert scrubber.numbers.problems == problems


def test_a_delete_or_a_retirement_in_the_middle_of_a_look_is_no_damage(tmp_path: Path) -> None:
    place = seal(tmp_path, 7, rows_of(40))
    delete(place, [3])
    counts = iter([0, 1, 1, 1])
    scrubber = scrub.Scrubber(lambda: [scrub.Item(place, deleted=lambda: next(counts))], 1 << 30)
    run(scrubber)
    assert scrubber.numbers.problems == 0

    gone = [False]

    def vanish() -> int:
        for kind in (place.data, place.index, place.tags):
            kind.path.unlink(missing_ok=True)
        gone[0] = True
        return 0

    scrubber = scrub.Scrubber(lambda: [scrub.Item(place, deleted=vanish, gone=lambda: gone[0])], 1 << 30)
    run(scrubber)
    assert scrubber.numbers.problems == 0


def test_an_empty_store_is_not_listed_in_a_loop() -> None:
    listed: list[int] = []
    scrubber = scrub.Scrubber(lambda: listed.append(1) or [], 1 << 30)
    assert scrubber.step(0, 0) == scrub.PASS_PAUSE_MS and scrubber.step(10, 10) > scrub.PASS_PAUSE_MS - 20 and len(listed) == 1


def test_rows_with_deleted_ones_before_the_seal_are_as_sound_as_others(tmp_path: Path) -> None:
    rows = [Row(1, 1, None, DELETED), *(Row(r.seq + 1, r.ts, r.entry, r.flags, r.count) for r in rows_of(10))]
    place = seal(tmp_path, 7, rows)
    assert place.data.path.read_bytes() == oracle.build(7, rows).data
    assert verify_name(name_of(tmp_path, 7, 1)).problems == []
