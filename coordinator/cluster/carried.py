"""What of the files of a session's own machine holds on its nodes, too: rules, the permission mode, what of the project is trusted.
Never an environment, a hook or a server: of these each machine has its own, since secrets stand there.

Trust travels for a workspace by git alone: as digests of what the project's files granted when the person trusted them
(`worker_agent/tools/trust.py`), by their places in the project. In a shared folder each machine has its own word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker_agent.tools.permissions import Policy
from worker_agent.tools.rules import RuleSet
from worker_agent.tools.trust import NOTHING, Trust, place_of, repository_root


def of(policy: Policy, rules: RuleSet, trusted: Trust, cwd: Path) -> dict[str, Any]:
    """What is stored with the session; `rules` are those of the settings files."""
    texts = {name: list(dict.fromkeys(rule.text for rule in getattr(rules, name))) for name in ("deny", "ask", "allow")}
    root = repository_root(cwd)
    files = {
        str(Path(place).relative_to(root)): digest for place, digest in trusted.files.items() if root in Path(place).parents
    }
    return {
        "mode": str(policy.mode),
        "permissions": {name: found for name, found in texts.items() if found},
        **({"trusted": files} if trusted.trusted else {}),
    }


def settings(carried: Mapping[str, Any]) -> tuple[str, ...]:
    """The rules as a settings file."""
    permissions = carried.get("permissions")
    return (json.dumps({"permissions": permissions}),) if permissions else ()


def trust(carried: Mapping[str, Any], place: Path) -> Trust:
    """What counts of the project's copy at `place`."""
    files = carried.get("trusted")
    if files is None:
        return NOTHING
    root = repository_root(place)
    return Trust(trusted=True, roots=frozenset({root}), files={place_of(root / name): known for name, known in files.items()})
