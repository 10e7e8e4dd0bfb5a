from typing import Any

from topicsd._native.hub import Connection, Hub

class Answers(Connection):
    transport: Any
    def __new__(cls, hub: Hub) -> Answers: ...
