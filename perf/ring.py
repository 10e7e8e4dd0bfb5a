"""How long is a round trip worker -> writer -> worker through a ring, beside the bare futex and eventfd?

Two processes, one batch in flight. `awake`: both spin. `asleep`: both sleep after each step, the writer on its futex, the worker on its eventfd.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable

from topicsd._native.regions import Shared
from topicsd._native.ring_end import RingEnd


def child(action: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return pid


def measure(rounds: int, run: Callable[[RingEnd], list[int]], answer: Callable[[RingEnd], None]) -> list[int]:
    shared = Shared.create(topics_max=16, ring_slots=1)
    shared.set("generation", 1)
    shared.assign_ring()
    ring = RingEnd(shared, 0)
    ring.adopt()
    pid = child(lambda: answer(ring))
    took_ns = run(ring)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the writer's half died")
    return took_ns[rounds // 10 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=256, help="bytes of a batch")
    options = parser.parse_args()
    rounds, size = options.rounds, options.size
    cases: dict[str, tuple[Callable[[RingEnd], list[int]], Callable[[RingEnd], None]]] = {
        "ring, awake": (lambda ring: ring.ping(rounds, size, True), lambda ring: ring.pong(True)),
        "ring, asleep": (lambda ring: ring.ping(rounds, size, False), lambda ring: ring.pong(False)),
        "bare, asleep": (lambda ring: ring.bare_ping(rounds), lambda ring: ring.bare_pong(rounds, 0)),
    }
    results = {name: measure(rounds, *case) for name, case in cases.items()}
    for name, took_ns in results.items():
        cuts = statistics.quantiles(took_ns, n=100)
        print(f"{name:14} p50 {cuts[49] / 1000:8.2f} us   p99 {cuts[98] / 1000:8.2f} us")
    ratio = statistics.median(results["ring, asleep"]) / statistics.median(results["bare, asleep"])
    print(f"ring / bare, asleep: {ratio:.2f}")


if __name__ == "__main__":
    main()
