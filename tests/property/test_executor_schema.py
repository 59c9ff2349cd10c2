"""The quick predicate for plain schemas against the library that decides."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from worker_agent.tools.registry import ToolRegistry
from worker_agent.tools.schema import plain_predicate

names = st.sampled_from(["a", "b", "c"])
bounds = st.integers(0, 3)
scalars = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"minLength": bounds, "maxLength": bounds, "description": st.just("d")}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])}, optional={"minimum": bounds, "maximum": bounds}
    ),
    st.fixed_dictionaries({"type": st.sampled_from(["boolean", "null"])}),
    st.fixed_dictionaries(
        {"enum": st.lists(st.sampled_from(["x", "y", ""]), min_size=1)}, optional={"type": st.just("string")}
    ),
    st.just({}),
    st.just({"type": ["string", "null"]}),
    st.just({"type": "string", "pattern": "^x"}),
    st.just({"enum": [1, None]}),
)  # fmt: skip


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")}, optional={"items": inner, "minItems": bounds, "maxItems": bounds}
    )
    objects = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, unique=True, max_size=2),
            "additionalProperties": st.one_of(st.booleans(), inner),
        },
    )
    return st.one_of(arrays, objects)


schemas = st.recursive(scalars, containers, max_leaves=6)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 4), st.floats(-1, 4), st.sampled_from(["", "x", "y", "xxxx"])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=600, deadline=None)
@given(schemas, values)
def test_what_the_predicate_takes_the_library_takes(schema: dict[str, Any], value: Any) -> None:
    predicate = plain_predicate(schema)
    if predicate is not None and predicate(value):
        assert Draft202012Validator(schema).is_valid(value)


@settings(max_examples=300, deadline=None)
@given(schemas, values)
def test_what_it_does_not_take_of_a_plain_schema_only_the_library_may(schema: dict[str, Any], value: Any) -> None:
    predicate = plain_predicate(schema)
    if predicate is not None and not predicate(value) and Draft202012Validator(schema).is_valid(value):
        assert "1.0" in repr(value) or ".0" in repr(value)  # a whole float counts as an integer in JSON Schema


def test_most_builtin_tools_have_a_plain_schema() -> None:
    plain = [t.name for t in ToolRegistry.builtin() if plain_predicate(t.input_schema) is not None]
    assert {"Bash", "Edit", "Glob", "Grep", "Read", "Write"} <= set(plain)
