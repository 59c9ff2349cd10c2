"""Schemas of structured results: what is one, and what of an answer does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from worker_agent.session.schema import fault, problem

TREE = {"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        TREE,
        {"$id": "https://example.org/tree", **TREE},
        {"properties": {"$ref": {"type": "string"}}},
        {"const": {"$ref": "nowhere"}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": {"$ref": "#/definitions/a"},
            "definitions": {"a": {}},
        },
    ],
)
def test_a_valid_schema_has_no_fault(schema: dict[str, Any]) -> None:
    assert fault(schema) is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": 12}, "$.type"),
        ({"properties": {"n": {"type": "integr"}}}, "$.properties.n.type"),
        ({"pattern": "("}, "regex"),
        ({"$schema": 5}, "$schema"),
        ({"$ref": "#/$defs/nowhere"}, "refers to nothing"),
        ({"items": {"$ref": "https://example.org/other"}}, "refers to nothing"),
    ],
)
def test_a_schema_that_could_never_be_fitted_is_named(schema: dict[str, Any], why: str) -> None:
    assert why in (fault(schema) or "")


def test_an_answer_is_taken_with_or_without_a_fence() -> None:
    schema = {"type": "object", "required": ["n"]}
    assert problem('{"n": 1}', schema) is None and problem('```json\n{"n": 1}\n```', schema) is None
    assert "'n' is a required property" in (problem("{}", schema) or "")
    assert "no JSON" in (problem("n is 1", schema) or "")
