"""The schema of a structured result: parse, check, and say in words what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_NO_SCHEMAS = frozenset({"const", "default", "enum", "examples"})
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
    worst = best_match(validator_for(schema)(schema).iter_errors(value))
    return None if worst is None else f"at {worst.json_path}: {worst.message}"


def fault(schema: Mapping[str, Any]) -> str | None:
    """Why `schema` is no valid JSON schema that stands by itself; None when it is one."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable

    if not isinstance(schema.get("$schema", ""), str):
        return "at $['$schema']: it is no string"
    try:
        validator_for(schema).check_schema(dict(schema))
        _resolve_all(schema)
    except SchemaError as error:
        return f"at {error.json_path}: {error.message}"
    except Unresolvable as error:
        return f"{error.ref!r} refers to nothing in it"
    return None


def _resolve_all(schema: Mapping[str, Any]) -> None:
    """Raises `Unresolvable` for a reference that leads nowhere: it would be found only when an answer is checked."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # it ships no types
    from referencing.jsonschema import DRAFT202012

    resolver = REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema))
    for reference in _references(schema):
        resolver.lookup(reference)


def _references(value: Any) -> Iterator[str]:
    """Every `$ref` that counts from the root: a part with an `$id` of its own is left out, and what is no schema."""
    if isinstance(value, Mapping):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        for key, part in value.items():
            if key not in _NO_SCHEMAS and not (isinstance(part, Mapping) and "$id" in part):
                yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)


def feedback(what: str) -> str:
    return f"Your answer must be one JSON value that fits the schema, and nothing else; {what}. Answer again."
