"""`layout.pxd` declares what `layout.h` says: the same structs with the same members, and every constant."""

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "_native"


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


HEADER = without_comments((NATIVE / "layout.h").read_text())
DECLARATIONS = (NATIVE / "layout.pxd").read_text()
MEMBER = re.compile(r"^(?P<type>(?:struct )?\w+) (?P<names>[^;]+)$")


def header_structs() -> dict[str, list[tuple[str, str]]]:
    structs = {}
    for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", HEADER, flags=re.DOTALL | re.MULTILINE):
        members = []
        for statement in (part.strip() for part in body.split(";")):
            if statement:
                found = MEMBER.match(statement)
                assert found, statement
                members += [(found["type"].removeprefix("struct "), member.strip()) for member in found["names"].split(",")]
        structs[name] = members
    return structs


def declared_structs() -> dict[str, list[tuple[str, str]]]:
    structs = {}
    for name, body in re.findall(r'ctypedef struct (\w+) "struct \1":\n((?: {8}.*\n)+)', DECLARATIONS + "\n"):
        structs[name] = [tuple(line.split(None, 1)) for line in body.splitlines()]
    return structs


def test_layout_has_structs_at_all():
    assert {"frame_header", "record_entry", "control", "topic_slot", "index_entry", "submission", "completion"} <= set(header_structs())


@pytest.mark.parametrize("name", sorted(header_structs()))
def test_a_struct_has_the_same_members_in_both_files(name):
    assert declared_structs()[name] == header_structs()[name]


def test_the_declarations_have_no_struct_of_their_own():
    assert set(declared_structs()) == set(header_structs())


def test_every_constant_is_declared():
    defined = set(re.findall(r"^#define ([A-Z]\w+) ", HEADER, flags=re.MULTILINE))
    for body in re.findall(r"^enum \w+ \{(.*?)\};", HEADER, flags=re.DOTALL | re.MULTILINE):
        defined |= set(re.findall(r"\b([A-Z]\w+)\s*=", body))

    declared = set(re.findall(r"^    const \w+ (\w+)$", DECLARATIONS, flags=re.MULTILINE))

    assert declared == defined


def test_words_that_python_reads_exist_and_are_named_in_the_layouts_order():
    """The names in regions.pyx follow the order of layout.h (its offsets are taken by the compiler)."""
    regions = (NATIVE / "regions.pyx").read_text()
    words = [member for kind, member in header_structs()["control"] if kind == "uint64_t" and not member.startswith("reserved")]
    listed = re.search(r"_CONTROL_WORDS = \(\n(.*?)\)\.split", regions, flags=re.DOTALL)
    assert listed
    names = [re.sub(r"\.\d", "", name) for name in " ".join(re.findall(r'"(.*?)"', listed[1])).split()]
    names = list(dict.fromkeys([*names, "recovered_records", "recovered_ms"]))

    assert names == [word for word in (re.sub(r"\[.*", "", word) for word in words) if word in names]
