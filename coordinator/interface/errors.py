"""What goes wrong, as programs in Python see it. The message of each is one line: what is wrong, and what to do.

CoordinatorError
├─ ConfigurationError   an argument, a file or a variable cannot be used
│  └─ NotAuthenticated  there is nothing to sign in with
├─ NotFound             no such session or task, or more than one that fits
├─ InUse                another process, or another `Coordinator` here, drives the session
├─ StoreError           the database cannot be opened, read or written
├─ Closed               the session is over, or was not entered yet
└─ RunFailed            the prompt ended without success; `.result` says how (`results.py`)

Exceptions of the packages below become one of these by their class, never by their text; a mistake of ours passes as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CoordinatorError(Exception):
    """Base of all of them."""


class ConfigurationError(CoordinatorError):
    """An argument, a file or a variable cannot be used."""


class NotAuthenticated(ConfigurationError):
    """There is nothing to sign in with."""


class NotFound(CoordinatorError):
    """No such session or task, or more than one that fits."""


class InUse(CoordinatorError):
    """Another process, or another `Coordinator` of this one, drives the session."""


class StoreError(CoordinatorError):
    """The database cannot be opened, read or written."""


class Closed(CoordinatorError):
    """The session is over, or was not entered yet."""


@contextmanager
def translated() -> Iterator[None]:
    """Around what the packages below are asked for."""
    try:
        yield
    except Exception as error:
        known = as_known(error)
        if known is None:
            raise
        raise known from error


def as_known(error: BaseException) -> CoordinatorError | None:
    """The error that a program is told of; None for one that nobody foresaw, or that is one already."""
    from coordinator.app import Credentials
    from tasks import errors as store
    from worker_agent.errors import AgentError, ConfigError

    line = " ".join(str(error).split()) or type(error).__name__
    match error:
        case Credentials():
            return NotAuthenticated(line)
        case ConfigError() | store.Exists():
            return ConfigurationError(line)
        case store.NotFound() | store.Ambiguous():
            return NotFound(line)
        case store.Owned():
            return InUse(line)
        case store.StoreError():
            return StoreError(line)
        case AgentError():
            return CoordinatorError(line)
    return None
