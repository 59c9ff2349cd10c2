"""Hooks: programs of the person that are told of events and may object. The contract is Claude Code's, so that a script
written for it works unchanged.

`config` reads and matches, `answer` turns exit code and output into a value, `run` starts a command or posts to a URL,
`runner` knows the events. Names of fields that scripts see are theirs; ours stand beside them as `COORDINATOR_…`.
"""

from worker_agent.hooks.answer import BatchVerdict, HookAnswer, StopVerdict, Verdict
from worker_agent.hooks.config import EVENTS, FENCING, Handler, HookConfig
from worker_agent.hooks.runner import HookRunner, HookSession

__all__ = [
    "EVENTS",
    "FENCING",
    "BatchVerdict",
    "Handler",
    "HookAnswer",
    "HookConfig",
    "HookRunner",
    "HookSession",
    "StopVerdict",
    "Verdict",
]
