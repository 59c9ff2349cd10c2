"""No known secret survives in any of the forms in which it travels."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.redaction import MARK, Redactor, in_json

SECRET = 'sk-ant-api03/AbC+dEf="gh\\ij\u00e9'


@pytest.mark.parametrize(
    "form",
    [
        SECRET, json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1], json.dumps(json.dumps(SECRET))[3:-3],
        quote(SECRET, safe=""), quote_plus(SECRET), quote(SECRET), quote(SECRET, safe="").lower().replace("abc", "AbC").replace("def", "dEf"),
        SECRET.encode().hex(), SECRET.encode().hex().upper(),
    ],
)  # fmt: skip
def test_every_form_is_found(form: str) -> None:
    assert Redactor([SECRET])(f"a {form} b") == f"a {MARK} b"


@given(st.binary(max_size=6), st.binary(max_size=6), st.sampled_from([base64.b64encode, base64.urlsafe_b64encode]))
def test_base64_is_found_at_any_place_of_a_longer_text(before: bytes, after: bytes, encode: object) -> None:
    secret = "correct-horse-battery"
    text = encode(before + secret.encode() + after).decode()  # type: ignore[operator]
    assert MARK in Redactor([secret])(text)


def test_of_two_secrets_the_longer_goes_whole() -> None:
    assert Redactor(["secret-one", "secret-one-longer"])("x secret-one-longer y") == f"x {MARK} y"


def test_short_values_and_texts_without_a_secret_stay_as_they_are() -> None:
    text = "nothing here"
    assert Redactor(["abc"])("abc") == "abc"
    assert Redactor([SECRET])(text) is text
    assert not Redactor([]) and Redactor([SECRET])


def test_a_secret_with_a_line_end_is_found_without_it() -> None:
    assert Redactor(["secret-value\n"])("secret-value") == MARK


@settings(max_examples=200)
@given(st.lists(st.text(min_size=8, max_size=20), min_size=1, max_size=4), st.lists(st.text(max_size=10), max_size=5))
def test_no_secret_is_left_and_redacting_twice_changes_nothing(secrets: list[str], parts: list[str]) -> None:
    redact = Redactor(secrets)
    once = redact("|".join([*parts, *secrets, *parts]))
    assert not any(secret in once for secret in secrets if secret not in MARK)
    assert redact(once) == once


@given(st.data(), st.lists(st.text("abc", min_size=8, max_size=12), min_size=1, max_size=4), st.text("abc", max_size=80))
def test_in_pieces_nothing_of_a_secret_comes_out_that_would_not_in_one(
    data: st.DataObject, secrets: list[str], text: str
) -> None:
    """Few letters and many secrets, so that beginnings, ends and whole secrets overlap in every way."""
    redact = Redactor(secrets)
    stream, out, rest = redact.stream(), [], text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        out.append(stream.feed(rest[:size]))
        rest = rest[size:]
    shown = "".join([*out, stream.rest()])
    assert not any(secret in shown for secret in secrets)
    assert shown == text or MARK in shown


def test_a_stream_holds_back_only_what_may_be_the_beginning_of_a_secret() -> None:
    stream = Redactor(["secret-one", "secret-one-longer"]).stream()
    assert [stream.feed(piece) for piece in ("a se", "at se", "cret-one", " b secret-one", "-longer.", "sec")] == [
        "a ", "seat ", "", f"{MARK} b ", f"{MARK}.", "",
    ]  # fmt: skip
    assert stream.rest() == "sec"


def test_a_json_value_without_a_secret_is_the_same_object() -> None:
    value = {"a": [1, {"b": "x"}], "c": None}
    redact = Redactor(["secret-one"])
    assert in_json(value, redact) is value
    assert in_json({"k secret-one": ["secret-one", 1]}, redact) == {f"k {MARK}": [MARK, 1]}


def test_each_line_of_a_private_key_is_a_secret() -> None:
    lines = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"]
    key = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----"])
    shown = Redactor([key])("\n".join(f"> {line}" for line in key.splitlines()))
    assert shown.splitlines() == ["> -----BEGIN PRIVATE KEY-----", f"> {MARK}", f"> {MARK}", "> -----END PRIVATE KEY-----"]
