"""The schema of a structured result: parse, check, and say in words what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)


def parse(text: str) -> Any:
    """The JSON value of `text`, with or without one Markdown fence around it. Raises `ValueError`."""
    fenced = _FENCE.match(text)
    return json.loads(fenced[1] if fenced else text)


def problem(text: str, schema: Mapping[str, Any]) -> str | None:
    """Why `text` is no JSON that fits `schema`; None when it does."""
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for

    try:
        value = parse(text)
    except ValueError as error:
        return f"the answer is no JSON: {error}"
    error = best_match(validator_for(schema)(schema).iter_errors(value))
    return None if error is None else f"at {error.json_path}: {error.message}"


def feedback(what: str) -> str:
    return f"Your answer must be one JSON value that fits the schema, and nothing else; {what}. Answer again."
