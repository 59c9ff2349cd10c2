"""What a program gave, as the options of a session; checked as the command line checks its flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.options import SESSION_ID, STRICTEST_FIRST, RunOptions
from coordinator.paths import Paths
from worker_agent.config import Settings
from worker_agent.errors import ConfigError
from worker_agent.session.schema import fault
from worker_agent.structs import replace
from worker_agent.tools.trust import EVERYTHING, NOTHING, SOURCES, Trust, TrustStore

AT_LEAST_ONE = ("max_turns", "token_budget", "max_workers")
MORE_THAN_NOTHING = ("max_budget_usd", "timeout")


def options_of(
    given: Mapping[str, Any], *, cwd: str | Path | None, home: str | Path | None, trusted: bool | None
) -> RunOptions:
    """A session that stays until the program leaves it. Raises `ConfigError`."""
    _check(given)
    config = Settings.from_env()
    if home is not None:
        config = replace(config, home=Path(home).absolute())
    directory = Path(cwd or ".").absolute()
    trust = _trust(Paths.of(config), directory, given["add_dirs"], trusted)
    if given["sources"] is not None and "project" not in given["sources"]:
        trust = NOTHING
    if given["offline"]:
        from coordinator.offline.client import MODEL

        given = {**given, "model": MODEL, "worker_model": MODEL}
    return RunOptions(**given, config=config, cwd=directory, trust=trust, interactive=True)


def schema_of(output: Any) -> Mapping[str, Any]:
    """The JSON schema of a type, or the schema that it is. Raises `ConfigError`."""
    if isinstance(output, Mapping):
        schema: Mapping[str, Any] = output
    else:
        import pydantic

        try:
            schema = pydantic.TypeAdapter(output).json_schema()
        except pydantic.errors.PydanticUserError as error:
            raise ConfigError(f"output: there is no schema of {output!r}: {str(error).splitlines()[0]}") from None
    if (problem := fault(schema)) is not None:
        raise ConfigError(f"output: this is no valid JSON schema: {problem}")
    return schema


def _check(given: Mapping[str, Any]) -> None:
    for name, values in STRICTEST_FIRST.items():
        if given[name] is not None and given[name] not in values:
            raise ConfigError(f"{name} {given[name]!r} is none of {', '.join(sorted(values))}")
    for name in AT_LEAST_ONE:
        if given[name] is not None and given[name] < 1:
            raise ConfigError(f"{name} must be 1 or more, not {given[name]}")
    for name in MORE_THAN_NOTHING:
        if given[name] is not None and not given[name] > 0:
            raise ConfigError(f"{name} must be more than nothing, not {given[name]}")
    if unknown := sorted((given["sources"] or frozenset()) - SOURCES):
        raise ConfigError(f"setting_sources: there is no source {', '.join(unknown)}; there are {', '.join(sorted(SOURCES))}")
    if given["session_id"] is not None and not SESSION_ID.fullmatch(given["session_id"]):
        raise ConfigError("session_id: 4 to 64 letters, digits, - and _, a letter or digit first")
    if given["fork_session"] and given["resume"] is None:
        raise ConfigError("fork_session copies the session that resume names; there is none")


def _trust(paths: Paths, cwd: Path, beside: tuple[Path, ...], trusted: bool | None) -> Trust:
    if trusted is not None:
        return EVERYTHING if trusted else NOTHING
    return TrustStore(paths.trust).of(cwd, *beside)
