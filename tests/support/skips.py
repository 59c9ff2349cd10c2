"""What a test needs beside Python, git and make. Where it is missing the test is left out, and the end of the run says so."""

from __future__ import annotations

import shutil

import pytest

from tests.support import browser
from tests.support.postgres import why_not

LOUD = "NOT TESTED"  # how the reasons begin that are repeated at the end of a run
_missing = why_not()
_no_browser = browser.why_not()
needs_chromium = pytest.mark.skipif(_no_browser is not None, reason=f"{LOUD} in a browser: {_no_browser}")
needs_postgres = pytest.mark.skipif(_missing is not None, reason=f"{LOUD} on PostgreSQL: {_missing}")
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason=f"{LOUD} in a real terminal: tmux is not here")
