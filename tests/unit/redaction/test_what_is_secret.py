"""Which values of an environment are secrets: by name and by shape, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_agent.config import secret_values

SECRETS = {
    "ANTHROPIC_API_KEY": "sk-ant-api03-abcdefgh", "GITHUB_TOKEN": "ghp_0123456789abcdef", "DB_PASSWORD": "hunter2!x9",
    "AWS_SECRET_ACCESS_KEY": "/AbC/defGHIjkl0123456789", "AZURE_OPENAI_KEY": "0a1b2c3d4e5f60718293",
    "X_PASSWORD": "correct-horse-battery-staple",
}  # fmt: skip
PLAIN = {
    "AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "AKIA0123456789ABCDEF", "AWS_PROFILE": "production-profile-1",
    "ANTHROPIC_BASE_URL": "https://gateway.example.com/v1", "ANTHROPIC_MODEL": "claude-sonnet-5-5",
    "OPENAI_API_KEY": "not-needed", "PGPASSWORD": "postgres", "MY_PASSWORD": "Changeme", "ADMIN_PASSWORD": "12345678",
    "MASKED_TOKEN": "********************", "NESTED_TOKEN": "${OTHER_TOKEN}", "SHORT_TOKEN": "a1b2c3",
    "GOOGLE_APPLICATION_CREDENTIALS": "/etc/passwd", "SSH_PRIVATE_KEY": "~/.ssh/id_ed25519",
    "TOKEN_URL": "https://login.example.com/oauth/token", "COORDINATOR_DATABASE_URL": "sqlite:////home/me/data.sqlite",
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SECRETS.items())
def test_what_is_called_a_credential_and_looks_like_one_is_a_secret(name: str, value: str) -> None:
    assert secret_values({name: value, **PLAIN}) == (value,)


@pytest.mark.parametrize(("name", "value"), PLAIN.items())
def test_regions_addresses_names_numbers_words_and_files_are_none(name: str, value: str) -> None:
    assert secret_values({name: value}) == ()


def test_of_an_address_only_the_password_is_secret_as_written_and_as_meant() -> None:
    assert secret_values({"DATABASE_URL": "postgres://me:p%40ssw0rd99@db.example.com/app"}) == ("p%40ssw0rd99", "p@ssw0rd99")
    assert secret_values({"HTTPS_PROXY": "http://me@proxy.example.com:3128"}) == ()


def test_of_custom_headers_the_long_values_are_secret() -> None:
    assert secret_values({"ANTHROPIC_CUSTOM_HEADERS": "X-Gateway: s3cr3t-h3ader\nX-Team: blue"}) == ("s3cr3t-h3ader",)


def test_a_file_that_is_yet_to_be_made_is_a_name_too(tmp_path: Path) -> None:
    assert secret_values({"SIGNING_SECRET": str(tmp_path / "new-key-1.pem")}) == ()
