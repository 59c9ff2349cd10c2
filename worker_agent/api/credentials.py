"""Whether there is anything to sign in with, asked without a call and, where that can be known, without the SDK: importing it
takes longer than all else that a command does."""

from __future__ import annotations

import os.path
import sys
from collections.abc import Mapping

from worker_agent.config import provider, vendor_environment

MISSING = (
    "No credentials for the model: set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN), "
    "or name a stored profile in ANTHROPIC_PROFILE."
)
_ENOUGH_ALONE = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE")
_IDENTITY_TOKEN = ("ANTHROPIC_IDENTITY_TOKEN", "ANTHROPIC_IDENTITY_TOKEN_FILE")
_FEDERATION = ("ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_ORGANIZATION_ID")
_ELSEWHERE = ("ANTHROPIC_CONFIG_DIR", *_FEDERATION)  # what has the SDK look in more places than its own directory
_PROFILES = "~/.config/anthropic"


def has_credentials(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment names a key, a token, a profile, a workload identity or a cloud, which has its own."""
    if provider(environ) is not None:
        return True
    env = vendor_environment(environ)
    if any(name in env for name in _ENOUGH_ALONE):
        return True
    return any(name in env for name in _IDENTITY_TOKEN) and all(name in env for name in _FEDERATION)


def has_stored_profile() -> bool:
    """Whether a profile on disk would be picked up. Where there is none, nobody is asked; else the SDK, whose rules these are."""
    if not _may_be_stored():
        return False
    from anthropic import CredentialsError
    from anthropic.lib.credentials import default_credentials

    try:
        return default_credentials() is not None
    except CredentialsError:
        return False


def _may_be_stored() -> bool:
    named = vendor_environment()
    return sys.platform == "win32" or any(name in named for name in _ELSEWHERE) or os.path.exists(os.path.expanduser(_PROFILES))
