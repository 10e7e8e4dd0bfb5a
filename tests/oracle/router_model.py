"""Routers in plain Python: topics as lists, forwarding as a loop. No caps on sources, so nothing is ever lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Record = dict[str, Any]
HOPS_MAX = 8


@dataclass
class Topic:
    records: list[Record | None] = field(default_factory=list)  # None: deleted; seq = place + 1
    hops: list[int] = field(default_factory=list)
    cap: int = 0  # of a destination that refuses
    first: int = 0  # below it everything is deleted


@dataclass
class Route:
    source: str
    dest: str
    cursor: int
    tag: str | None
    preserve_node: bool
    preserve_tag: bool
    cyclic: bool = False


class Model:
    """Apply commands as the documents say."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.routes: dict[str, Route] = {}

    def append(self, name: str, records: list[Record]) -> None:
        topic = self.topics.setdefault(name, Topic())
        topic.records += records
        topic.hops += [0] * len(records)
        self.forward()

    def live(self, name: str) -> list[tuple[int, Record]]:
        return [(place + 1, record) for place, record in enumerate(self.topics[name].records) if record is not None]

    def delete(self, name: str, before: int, tag: str | None) -> None:
        topic = self.topics[name]
        for place in range(min(before - 1, len(topic.records))):
            record = topic.records[place]
            if record is not None and (tag is None or record.get("tag") == tag):
                topic.records[place] = None
        self.forward()

    def drop(self, name: str) -> list[str]:
        self.topics.pop(name, None)
        gone = [router for router, route in self.routes.items() if name in (route.source, route.dest)]
        for router in gone:
            del self.routes[router]
        return sorted(gone)

    def reaches(self, start: str, goal: str) -> bool:
        seen, waiting = {start}, [start]
        while waiting:
            at = waiting.pop()
            for route in self.routes.values():
                if route.source == at and route.dest not in seen:
                    seen.add(route.dest)
                    waiting.append(route.dest)
        return goal in seen

    def mark(self) -> None:
        for route in self.routes.values():
            route.cyclic = self.reaches(route.dest, route.source)

    def forward(self) -> None:
        moved = True
        while moved:
            moved = False
            for route in self.routes.values():
                source, dest = self.topics[route.source], self.topics[route.dest]
                while route.cursor < len(source.records):
                    record, hops = source.records[route.cursor], source.hops[route.cursor]
                    taken = record is not None and (route.tag is None or record.get("tag") == route.tag)
                    if taken and not (route.cyclic and hops >= HOPS_MAX):
                        if dest.cap and sum(each is not None for each in dest.records) >= dest.cap:
                            break
                        kept = {name for name in ("node", "tag") if getattr(route, f"preserve_{name}")} | {"data"}
                        dest.records.append({name: value for name, value in record.items() if name in kept})
                        dest.hops.append(hops + 1)
                    route.cursor += 1
                    moved = True
