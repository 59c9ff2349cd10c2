"""What an observer is shown of a call: the input with its paths made absolute, on a copy.

The conversation keeps what the model wrote, for that is what was signed, stored and sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worker_agent import events as e
from worker_agent.messages import Block
from worker_agent.structs import replace
from worker_agent.tool_facts import Facts


def enriched(event: e.Event, facts: Callable[[str], Facts], cwd: Path) -> e.Event:
    """The event as it is shown; itself where there is nothing to add. `cwd` is where the agent stands."""
    match event:
        case e.MessageAdded(message) if message.tool_uses:
            content = tuple(_block(block, facts, cwd) for block in message.content)
            same = all(new is old for new, old in zip(content, message.content, strict=True))
            return event if same else replace(event, message=replace(message, content=content, wire=b""))
        case e.ToolStarted(name=name, input=given):
            shown = _input(given, facts(name).path_fields, cwd)
            return event if shown is given else replace(event, input=shown)
        case _:
            return event


def _block(block: Block, facts: Callable[[str], Facts], cwd: Path) -> Block:
    if block.get("type") != "tool_use" or not isinstance(given := block.get("input"), Mapping):
        return block
    shown = _input(given, facts(block["name"]).path_fields, cwd)
    return block if shown is given else {**block, "input": shown}


def _input(given: Mapping[str, Any], fields: tuple[str, ...], cwd: Path) -> Mapping[str, Any]:
    paths = {field: given[field] for field in fields if isinstance(given.get(field), str) and given[field]}
    absolute = {field: os.path.join(cwd, os.path.expanduser(path)) for field, path in paths.items()}
    return given if absolute == paths else {**given, **absolute}
