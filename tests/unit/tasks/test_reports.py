"""Reports that hold nothing are told from short answers."""

from __future__ import annotations

import pytest

from tasks.reports import LONGEST, says_nothing

POINTERS = [
    "See above.", "see above", "See above for the full report.", "Please see my previous message.", "As stated above.", "Done. See above!", "The full report is above.",
    "My findings are listed above.", "Refer to the summary above.", "I have nothing further to add.", "**See above.**",
    "See above.\n\n[the worktree /w/a1 is gone: nothing was changed in it]",
]  # fmt: skip
PROMISES = [
    "I will now run the tests.", "Let me check the parser in src/a.py:", "Okay, I'll start by reading the code.",
    "Understood. I'm going to look at the logs first. Then I will report.", "Next, I will implement the change and verify it.",
    "Let\u2019s explore the repository.", "I need to look at more files.", "Great! Let me now summarize the findings:",
]  # fmt: skip
ANSWERS = [
    "42", "Done: fixed in a.py:3", "Done.", "OK", "Yes.", "No matches.", "None", "a.py:3", "", "PASS", "All 14 tests pass.",
    "I will not change a.py: it is right.", "Let me know if you need more.", "I'll leave it, since both callers need it.",
    "I will report that the parser is wrong in a.py:3.", "See a.py:3 above the loop.", "See src/above.py.", "As above, so below",
    "Let me check: yes, it is there.", "I looked at the logs. I will now stop.", "The above is wrong.", "See docs/x.md.",
    "I will fix a.py. It is broken in line 3.", "Siehe oben.", "I need to look at more files, but a.py is wrong.",
]  # fmt: skip


@pytest.mark.parametrize("text", POINTERS)
def test_a_pointer_to_what_nobody_saw_is_no_report(text: str) -> None:
    assert says_nothing(text) == "it only points to something that is not in it"


@pytest.mark.parametrize("text", PROMISES)
def test_a_promise_is_no_report(text: str) -> None:
    assert says_nothing(text) == "it only announces what it would do"


@pytest.mark.parametrize("text", ANSWERS)
def test_a_short_answer_is_one(text: str) -> None:
    assert says_nothing(text) is None


def test_a_long_text_is_never_looked_at() -> None:
    assert says_nothing("I will now run the tests. " * (LONGEST // 20)) is None
