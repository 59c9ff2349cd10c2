"""A tool's input against its schema, and what is wrong with it in words for the model.

`jsonschema` decides. Nearly every input fits, though, and importing the library costs more than a whole turn of tools:
a plain schema is therefore compiled into one predicate that may only say "fits" (a property test holds it against the
library), and the library is asked when it does not. Nothing is coerced: `"10"` is no number, and the model is told so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from worker_agent.tools.base import Input, Tool

Predicate = Callable[[Any], bool]

MAX_ERRORS = 5
_ANNOTATIONS = frozenset({"description", "title", "default", "examples", "$schema"})
_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float), "null": type(None)}


def problem_with(tool: Tool, input: Input) -> str | None:
    """What is wrong with `input`, one line a problem; None if it fits."""
    fits, validator = _compiled(_Schema(tool.input_schema))
    if fits is not None and fits(input):
        return None
    errors = sorted(validator().iter_errors(input), key=lambda e: [str(p) for p in e.absolute_path])
    if not errors:
        return None
    lines = [_sentence(error, tool.input_schema) for error in errors[:MAX_ERRORS]]
    if len(errors) > MAX_ERRORS:
        lines.append(f"and {len(errors) - MAX_ERRORS} more")
    return f"The input of {tool.name} does not fit its schema:\n" + "\n".join(f"- {line}" for line in lines)


class _Schema:
    """A schema as a key: the same object, not an equal one. It is kept alive, so that its id stays its own."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Schema) and other.schema is self.schema


@lru_cache(maxsize=1024)
def _compiled(wrapped: _Schema) -> tuple[Predicate | None, Callable[[], Any]]:
    @lru_cache(maxsize=1)
    def validator() -> Any:
        from jsonschema import Draft202012Validator

        return Draft202012Validator(wrapped.schema)

    return plain_predicate(wrapped.schema), validator


def plain_predicate(schema: Mapping[str, Any]) -> Predicate | None:
    """A predicate that is true only for what fits `schema`; None for a schema that is not plain."""
    known = schema.keys() - _ANNOTATIONS
    if "enum" in known and known <= {"type", "enum"}:
        allowed = schema["enum"]
        if all(isinstance(a, str) for a in allowed) and schema.get("type", "string") == "string":
            return lambda value: isinstance(value, str) and value in allowed
        return None
    kind = schema.get("type")
    if kind == "object" and known <= {"type", "properties", "required", "additionalProperties"}:
        return _object_predicate(schema)
    if kind == "array" and known <= {"type", "items", "minItems", "maxItems"}:
        return _array_predicate(schema)
    if kind == "boolean" and known == {"type"}:
        return lambda value: value is True or value is False
    if isinstance(kind, str) and kind in _TYPES:
        return _scalar_predicate(schema, _TYPES[kind], known - {"type"})
    return None


def _scalar_predicate(schema: Mapping[str, Any], kind: type | tuple[type, ...], bounds: set[str]) -> Predicate | None:
    if not bounds:
        return lambda value: isinstance(value, kind) and value is not True and value is not False
    if kind is str and bounds <= {"minLength", "maxLength", "pattern"}:
        low, high, pattern = schema.get("minLength", 0), schema.get("maxLength", float("inf")), schema.get("pattern", "")
        return lambda value: isinstance(value, str) and low <= len(value) <= high and re.search(pattern, value) is not None
    if kind in (int, (int, float)) and bounds <= {"minimum", "maximum"}:
        least, most = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
        return lambda value: isinstance(value, kind) and not isinstance(value, bool) and least <= value <= most
    return None


def _array_predicate(schema: Mapping[str, Any]) -> Predicate | None:
    item = plain_predicate(schema["items"]) if "items" in schema else lambda value: True
    if item is None:
        return None
    low, high = schema.get("minItems", 0), schema.get("maxItems", float("inf"))
    return lambda value: isinstance(value, list) and low <= len(value) <= high and all(item(v) for v in value)


def _object_predicate(schema: Mapping[str, Any]) -> Predicate | None:
    fields: dict[str, Predicate] = {}
    for name, sub in schema.get("properties", {}).items():
        if (predicate := plain_predicate(sub)) is None:
            return None
        fields[name] = predicate
    required = tuple(schema.get("required", ()))
    open_ended = schema.get("additionalProperties", True)
    if open_ended not in (True, False):
        return None

    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or any(name not in value for name in required):
            return False
        for name, item in value.items():
            predicate = fields.get(name)
            if not (predicate(item) if predicate else open_ended):
                return False
        return True

    return fits


def _sentence(error: Any, schema: Mapping[str, Any]) -> str:
    where = ".".join(str(p) for p in error.absolute_path)
    match error.validator:
        case "required":
            missing = next((n for n in error.validator_value if n not in error.instance), "?")
            wanted = _expected(error.schema.get("properties", {}).get(missing, {}))
            return f"`{_joined(where, missing)}` is missing: expected {wanted}"
        case "additionalProperties":
            known = error.schema.get("properties", {})
            extra = ", ".join(f"`{_shown(n, 60)}`" for n in error.instance if n not in known)
            place = f" in `{where}`" if where else ""
            return f"unknown field {extra}{place}; the fields are {', '.join(known) or 'none'}"
        case "type":
            hint = ""
            if isinstance(error.instance, str) and error.instance[:1] in "[{":
                hint = "; send the value itself, not a string that holds JSON"
            return f"`{where or 'input'}`: expected {_expected(error.schema)}, got {_got(error.instance)}{hint}"
        case _:
            return f"`{where or 'input'}`: {_shown(error.message, 300)}"


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _expected(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    kind = schema.get("type", "a value")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _got(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    name = names.get(type(value), "null")
    return name if value is None or isinstance(value, (list, dict)) else f"{name} {_shown(json.dumps(value), 80)}"


def _shown(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
