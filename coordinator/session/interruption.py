"""What an interrupt of a person did: a value, so that whoever tells of it says what really happened."""

from __future__ import annotations

from enum import Enum, auto


class Interruption(Enum):
    """What an interrupt did."""

    TURN = auto()  # the turn ends; workers go on
    NO_TURN = auto()  # there was none to end; workers go on
    NOTHING = auto()  # nothing ran
    WORKERS = auto()  # the second in a row: workers are stopped
    AT_ONCE = auto()  # the third in a row: whoever drives the session is to leave at once
