"""Whether a model can be asked at all, said before anything is begun."""

from __future__ import annotations


def credentials_problem() -> str | None:
    """One line that says what to set, or None. No call is made."""
    from worker_agent.api import credentials

    if credentials.has_credentials() or credentials.has_stored_profile():
        return None
    return f"{credentials.MISSING} Or try --offline: it needs none."
