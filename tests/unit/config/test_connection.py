"""The variables by which the API is reached: mended where a paste left something, named where they cannot be used."""

from __future__ import annotations

import os

import pytest

from worker_agent.config import connection_problem, mend_credentials


@pytest.mark.parametrize("around", ["\n", "\r\n", " ", "\u200b", "\ufeff", "\xa0"])
def test_what_a_paste_left_around_a_key_is_taken_off(monkeypatch: pytest.MonkeyPatch, around: str) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", f"{around}sk-one{around}")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", f"two{around}")
    assert connection_problem() is None
    mend_credentials()
    assert (os.environ["ANTHROPIC_API_KEY"], os.environ["ANTHROPIC_AUTH_TOKEN"]) == ("sk-one", "two")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ANTHROPIC_API_KEY", "sk-one two"),
        ("ANTHROPIC_API_KEY", "sk-\u200bone"),
        ("ANTHROPIC_AUTH_TOKEN", "sk\none"),
        ("ANTHROPIC_BASE_URL", "localhost:8080"),
        ("ANTHROPIC_BASE_URL", "nonsense"),
        ("ALL_PROXY", "socks://127.0.0.1:9"),
        ("all_proxy", "socks5h://user:pass@host"),
        ("HTTPS_PROXY", "two words"),
        ("https_proxy", "http:///nowhere"),
    ],
)
def test_what_cannot_be_used_is_named_without_its_value(name: str, value: str) -> None:
    problem = connection_problem({name: value})
    assert problem is not None and problem.startswith(f"{name} ") and value not in problem


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"ANTHROPIC_API_KEY": "", "HTTPS_PROXY": ""},
        {"ANTHROPIC_BASE_URL": "https://api.example.com/v1", "HTTPS_PROXY": "http://user:p%40ss@proxy:3128/"},
        {"ALL_PROXY": "proxy.example.com:3128", "http_proxy": "HTTP://[::1]:8080"},
    ],
)
def test_what_can_be_used_is_no_problem(environ: dict[str, str]) -> None:
    assert connection_problem(environ) is None


@pytest.mark.parametrize("around", ["{}", "{}/", "{}/v1", "{}/v1/", " {}/v1/\r\n", "\ufeff{}\n"])
def test_an_address_is_taken_however_it_was_pasted(monkeypatch: pytest.MonkeyPatch, around: str) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", around.format("http://localhost:8080/api"))
    mend_credentials()
    assert os.environ["ANTHROPIC_BASE_URL"] == "http://localhost:8080/api"
