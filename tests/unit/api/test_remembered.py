"""What endpoints taught is kept for the next session, and never in its way."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.fake_api import FakeAPI, http_error
from tests.unit.api.clock import ManualClock
from worker_agent import messages as m
from worker_agent.api.anthropic_client import AnthropicClient
from worker_agent.api.client import ModelRequest
from worker_agent.api.remembered import HOLDS, Remembered
from worker_agent.config import ContextSettings, Settings
from worker_agent.errors import ModelError

OVERFLOW = http_error(
    400, "invalid_request_error", "the request exceeds the available context size: 9000 tokens > 8192 maximum"
)


async def window(api: FakeAPI, file: Path, *, refused: bool = False, set: int | None = None) -> int:
    """The window of a model in a session of its own, after a refusal or from the start."""
    settings = Settings(context=ContextSettings(window=set))
    client = AnthropicClient(settings=settings, base_url=api.base_url, api_key="key", remembered=file)
    try:
        if refused:
            request = ModelRequest(model="claude-sonnet-5", max_tokens=10, system=(), tools=(), messages=(m.user("hi"),))
            with pytest.raises(ModelError):
                async for _ in client.stream(request):
                    pass
        return (await client.model_info("claude-sonnet-5")).window
    finally:
        await client.close()


def test_the_next_session_knows_the_window_that_a_refusal_named_and_a_persons_own_word_stands(tmp_path: Path) -> None:
    file = tmp_path / "data" / "endpoints.json"
    with FakeAPI(OVERFLOW) as api, FakeAPI(OVERFLOW) as other:
        assert asyncio.run(window(api, file)) == 1_000_000
        assert asyncio.run(window(api, file, refused=True)) == 8_192
        assert asyncio.run(window(api, file)) == 8_192
        assert asyncio.run(window(api, file, set=32_000)) == 1_000_000  # the setting decides then, see `effective_window`
        assert asyncio.run(window(other, file)) == 1_000_000
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_entry_ends_after_a_while_and_holds_no_password(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    then = Remembered(file, "http://user:pass@host:8080/v1/", ManualClock(1_000.0))
    then.learned("local", 4_096)
    assert b"pass" not in file.read_bytes()
    assert then.window("local") == 4_096 and then.window("other") is None
    assert Remembered(file, "http://host:8080/v1", ManualClock(1_000.0 + HOLDS + 1)).window("local") is None


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"http://h": 1}', b'{"http://h": {"local": {"window": "8k", "at": 0}}}']
)
def test_a_file_that_cannot_be_read_is_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "endpoints.json"
    file.write_bytes(content)
    known = Remembered(file, "http://h", ManualClock(1_000.0))
    assert known.window("local") is None
    known.learned("local", 2_048)
    assert known.window("local") == 2_048


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no directory")
    os.chmod(place, 0o400)
    known = Remembered(place / "endpoints.json", "http://h", ManualClock())
    known.learned("local", 2_048)
    assert known.window("local") is None
