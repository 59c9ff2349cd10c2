"""How a run ends, seen from a shell: the codes. Which end has which stands in `ends.py`.

0 done · 1 failed · 2 usage · 3 no such session or task · 4 not authenticated · 5 budget used up · 6 turn or time limit
· 7 needs a person and there is none · 8 verification failed · 9 ended with live workers · 124 `wait --timeout` ran out
· 130 interrupted · 143 terminated.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_AUTHENTICATED = 4
    BUDGET = 5
    LIMIT = 6
    NEEDS_PERSON = 7
    UNVERIFIED = 8
    LIVE_WORKERS = 9
    WAIT_TIMEOUT = 124
    INTERRUPTED = 130
    TERMINATED = 143
