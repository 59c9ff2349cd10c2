"""Trust is a person's word about a real path, kept in a file of ours."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from worker_agent.errors import ConfigError
from worker_agent.tools.trust import TrustStore, repository_root


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repository/.git").mkdir(parents=True)
    (tmp_path / "repository/src").mkdir()
    return tmp_path / "repository"


def test_nothing_is_trusted_until_a_person_says_so(tmp_path: Path, repository: Path) -> None:
    store = TrustStore(tmp_path / "home/trust.json")
    assert not store.of(repository).trusted
    assert store.trust(repository / "src") == repository
    assert store.of(repository).trusted and store.of(repository / "src").trusted
    assert not store.of(tmp_path).trusted
    assert store.trusted() == (repository,)
    assert store.revoke(repository) and not store.revoke(repository)
    assert not store.of(repository).trusted


def test_trust_is_keyed_by_the_real_path(tmp_path: Path, repository: Path) -> None:
    store = TrustStore(tmp_path / "trust.json")
    link = tmp_path / "link"
    link.symlink_to(repository)
    store.trust(link)
    assert store.of(repository).trusted
    link.unlink()
    (tmp_path / "evil").mkdir()
    link.symlink_to(tmp_path / "evil")
    assert not store.of(link).trusted


def test_without_a_repository_the_directory_itself_is_meant(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    store = TrustStore(tmp_path / "trust.json")
    store.trust(tmp_path / "a")
    assert not store.of(tmp_path / "a/b").trusted
    assert repository_root(tmp_path / "a") == tmp_path / "a"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"trusted": []}', "\x00"])
def test_a_damaged_file_trusts_nothing_and_is_not_written_over(tmp_path: Path, repository: Path, content: str) -> None:
    path = tmp_path / "trust.json"
    path.write_text(content)
    assert not TrustStore(path).of(repository).trusted
    with pytest.raises(ConfigError, match="trust.json"):
        TrustStore(path).trust(repository)
    assert path.read_text() == content


def test_a_directory_that_is_not_there_cannot_be_trusted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        TrustStore(tmp_path / "trust.json").trust(tmp_path / "nowhere")


def test_several_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    places = [tmp_path / str(n) for n in range(12)]
    for place in places:
        place.mkdir()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda place: TrustStore(path).trust(place), places))
    assert len(json.loads(path.read_text())["trusted"]) == 12
