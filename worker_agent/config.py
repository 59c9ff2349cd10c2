"""Settings: frozen values with their units, and the only reader of environment variables.

Everything else takes settings as values. `Settings.from_env` reads `COORDINATOR_…`; the SDK reads its own `ANTHROPIC_…`.
`Clock` is where time comes from, so that tests own it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from worker_agent.errors import ConfigError
from worker_agent.structs import replace

if TYPE_CHECKING:
    import random

DEFAULT_MODEL = "claude-sonnet-5-5"
MODES_STRICTEST_FIRST = ("plan", "dontAsk", "default", "acceptEdits", "bypassPermissions")  # of permission
DEFAULT_SMALL_MODEL = "claude-haiku-5-5"

# Taken out of every environment that a tool, hook or server sees: prefixes, and endings of names that hold credentials.
SECRET_PREFIXES = (
    "ANTHROPIC_", "AWS_", "AZURE_", "CLAUDE_CODE_OAUTH", "COORDINATOR_DATABASE_URL", "COORDINATOR_SERVE_TOKEN",
    "GOOGLE_APPLICATION_", "OPENAI_",
)  # fmt: skip
SECRET_ENDINGS = (
    "_ACCESS_KEY", "_API_KEY", "_APIKEY", "_CREDENTIALS", "_PAT", "_PRIVATE_KEY", "_SECRET", "_SECRET_KEY", "_TOKEN",
    "PASSPHRASE", "PASSWD", "PASSWORD", "MYSQL_PWD",
)  # fmt: skip
_LEAST = 8  # characters of a value that is redacted: a shorter one would tear ordinary text apart
_WORDS = re.compile(r"(?:[A-Z]?[a-z]+|[A-Z]+)(?:[-_. ](?:[A-Z]?[a-z]+|[A-Z]+))*")
_WORDS_LEAST = 20  # characters from which on several words are taken for a passphrase
_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)[/\\].*")
_USER_AND_PASSWORD = re.compile(r"\s*[a-z][a-z0-9+.-]*://[^/?#\s@]*:([^/?#\s]+)@", re.IGNORECASE)

CREDENTIALS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_UNSEEN = " \t\r\n\v\f\xa0\u200b\u200c\u200d\u2060\ufeff"  # what a paste leaves around a key
# By which the API is reached, and the schemes that the transport knows.
ADDRESSES: Mapping[str, Sequence[str]] = {
    "ANTHROPIC_BASE_URL": ("https", "http"),
    "ALL_PROXY": ("http", "https"),
    "HTTPS_PROXY": ("http", "https"),
    "HTTP_PROXY": ("http", "https"),
}

# What git itself drops before it goes to another repository (`git rev-parse --local-env-vars`), and what narrows or moves
# one. A `GIT_DIR` of our caller (a pre-commit hook's, say) must not lead an agent's commits into another repository.
REPOSITORY_VARIABLES = frozenset(
    """GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_ATTR_SOURCE GIT_COMMON_DIR GIT_CONFIG GIT_CONFIG_COUNT GIT_CONFIG_PARAMETERS GIT_DIR
    GIT_GRAFT_FILE GIT_IMPLICIT_WORK_TREE GIT_INDEX_FILE GIT_INTERNAL_SUPER_PREFIX GIT_NAMESPACE GIT_NO_REPLACE_OBJECTS
    GIT_OBJECT_DIRECTORY GIT_PREFIX GIT_QUARANTINE_PATH GIT_REF_STORAGE_FORMAT GIT_REPLACE_REF_BASE GIT_SHALLOW_FILE
    GIT_WORK_TREE""".split()
)
REPOSITORY_PREFIXES = ("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")


class Provider(StrEnum):
    """Clouds that serve the vendor's models."""

    BEDROCK = "bedrock"
    VERTEX = "vertex"
    FOUNDRY = "foundry"


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        from asyncio import sleep

        await sleep(seconds)


class RetrySettings(Struct, frozen=True, kw_only=True):
    """The schedule of model calls. Durations in seconds."""

    max_tries: int = 10
    first_delay: float = 0.5
    max_delay: float = 32.0
    jitter: float = 0.25  # share of the delay added at most
    max_retry_after: float = 3600.0  # a longer wait ends the call at once
    overloads_before_fallback: int = 3
    requests_per_minute: int | None = None  # of the account, over all processes that share a database; None = no bound
    tokens_per_minute: int | None = None
    silence: float = 90.0  # without a content event the stream is dead
    connect_timeout: float = 10.0


class LoopSettings(Struct, frozen=True, kw_only=True):
    max_output_tokens: int | None = None  # per call; None = default_output_tokens of the model table
    default_output_tokens: int = 16_000
    escalated_output_tokens: int = 64_000
    max_output_recoveries: int = 3
    max_stop_hook_blocks: int = 8
    token_budget_share: float = 0.9
    diminishing_continuations: int = 3
    diminishing_tokens: int = 500
    identical_calls_before_warning: int = 5
    tool_use_summaries: bool = True


class ToolSettings(Struct, frozen=True, kw_only=True):
    """Sizes in characters unless said otherwise, durations in seconds."""

    max_concurrency: int = 10
    streaming: bool = True  # a call begins as soon as it is closed; False: when the whole answer is there
    result_cap: int = 50_000
    preview: int = 2_000
    message_cap: int = 200_000
    bash_timeout: float = 120.0
    bash_max_timeout: float = 600.0
    bash_background_timeout: float = 3600.0  # of a command in the background
    bash_output: int = 30_000
    bash_file_cap: int = 64 * 1024 * 1024  # bytes on disk for one command's output
    kill_grace: float = 2.0
    heavy_commands: int | None = None  # that build or test, at once in this process; None = as many as cores
    command_nice: int | None = None  # by how much commands are nicer than this process; None = not at all, on a node by 10
    command_memory: int | None = None  # MiB of data that each process of a command may hold (Linux)
    read_lines: int = 2_000
    read_bytes: int = 256 * 1024
    web_bytes: int = 10 * 1024 * 1024
    web_timeout: float = 30.0
    web_private: bool = False  # WebFetch reaches loopback and private networks, too
    sandbox_network: bool = False  # commands that run unasked because they are confined reach the network


class ContextSettings(Struct, frozen=True, kw_only=True):
    """Tokens unless said otherwise."""

    auto_compact: bool = True
    auto_compact_buffer: int = 13_000
    blocking_buffer: int = 3_000
    summary_reserve: int = 20_000
    max_compact_failures: int = 3
    compact_keep: float = 0.10  # share of the effective window: newest messages a compaction keeps as they are
    snip_at: float = 0.75  # share of the effective window
    snip_at_least: float = 0.15  # share of the effective window: freeing less is not worth a broken cache
    snip_keep_turns: int = 10
    microcompact_keep: int = 5
    microcompact_cold: float = 3600.0  # seconds since the last assistant message
    server_edit_at: float = 0.80  # share of the effective window
    collapse: bool = True
    collapse_stage: float = 0.85  # share of the effective window: a summary is made in the background from here on
    collapse_commit: float = 0.90  # share of the effective window
    collapse_front: float = 0.45  # share of the effective window: the oldest part, which stays as the cache holds it
    collapse_keep: float = 0.05  # share of the effective window: newest turns left out
    collapse_block_spawns: float = 0.95
    rebuild_files: int = 5
    rebuild_file_tokens: int = 5_000
    rebuild_files_tokens: int = 50_000
    window: int | None = None  # overrides the model's own


class McpSettings(Struct, frozen=True, kw_only=True):
    """Of MCP servers. Durations in seconds. More tools than `tools_at_once`, or more text about them than `tools_text`
    (characters), are searched for by name instead of being told in full."""

    start_timeout: float = 30.0
    call_timeout: float = 600.0
    tools_at_once: int = 40
    tools_text: int = 40_000


class Settings(Struct, frozen=True, kw_only=True):
    """All of it. `home` is the data directory; None = the user's data directory of the platform."""

    model: str = DEFAULT_MODEL
    names_model: bool = False  # the environment named the model, so that no settings file does
    worker_model: str | None = None
    fallback_model: str | None = None
    small_model: str = DEFAULT_SMALL_MODEL
    home: Path | None = None
    retry: RetrySettings = field(default_factory=RetrySettings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    tools: ToolSettings = field(default_factory=ToolSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    mcp: McpSettings = field(default_factory=McpSettings)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings out of `COORDINATOR_…` variables, named as the field (`COORDINATOR_MAX_TOOL_CONCURRENCY` and
        `COORDINATOR_TOOLS_MAX_CONCURRENCY` are one). `MCP_TIMEOUT` and `MCP_TOOL_TIMEOUT`, in milliseconds, stand behind
        ours. A value that cannot be read raises `ConfigError`."""
        env = os.environ if environ is None else environ
        named = env.get("COORDINATOR_MODEL") or env.get("ANTHROPIC_MODEL")
        settings = cls(
            model=named or DEFAULT_MODEL,
            names_model=bool(named),
            worker_model=env.get("COORDINATOR_WORKER_MODEL") or None,
            fallback_model=env.get("COORDINATOR_FALLBACK_MODEL") or None,
            small_model=env.get("COORDINATOR_SMALL_MODEL") or DEFAULT_SMALL_MODEL,
            home=Path(env["COORDINATOR_HOME"]).expanduser() if env.get("COORDINATOR_HOME") else None,
        )
        for ours, theirs in _MCP_ALIASES.items():
            if env.get(theirs, "").isdecimal() and not env.get(ours):
                env = {**env, ours: str(int(env[theirs]) / 1000)}
        aliases = {"COORDINATOR_MAX_TOOL_CONCURRENCY": "COORDINATOR_TOOLS_MAX_CONCURRENCY"}
        env = {aliases.get(k, k): v for k, v in env.items() if k.startswith("COORDINATOR_")}
        groups = {}
        for group in ("retry", "loop", "tools", "context", "mcp"):
            value = getattr(settings, group)
            groups[group] = _read_group(value, f"COORDINATOR_{group.upper()}_", env)
        return replace(settings, **groups)


_MCP_ALIASES = {"COORDINATOR_MCP_START_TIMEOUT": "MCP_TIMEOUT", "COORDINATOR_MCP_CALL_TIMEOUT": "MCP_TOOL_TIMEOUT"}


def _read_group(group: Any, prefix: str, env: Mapping[str, str]) -> Any:
    changes = {}
    for field_name, kind in type(group).__annotations__.items():
        name = prefix + field_name.upper()
        if raw := env.get(name):
            changes[field_name] = _parse(name, raw, kind)
    return replace(group, **changes)


def _parse(name: str, raw: str, kind: str) -> Any:
    try:
        if kind.startswith("bool"):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[raw.lower()]
        return int(raw) if kind.startswith("int") else float(raw)
    except (KeyError, ValueError):
        raise ConfigError(f"{name}={raw!r} cannot be read as {kind.split(' ')[0]}") from None


def vendor_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The `ANTHROPIC_…` variables that are set to something: whether there are credentials can be seen without the SDK."""
    env = os.environ if environ is None else environ
    return {name: value for name, value in env.items() if name.startswith("ANTHROPIC_") and value}


def account(environ: Mapping[str, str] | None = None) -> str:
    """A name for whose limits hold: a digest of the credential and the address."""
    import hashlib

    env = os.environ if environ is None else environ
    said = "\0".join(env.get(name, "") for name in (*CREDENTIALS, "ANTHROPIC_BASE_URL"))
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def vendor_address(environ: Mapping[str, str] | None = None) -> str | None:
    """What `ANTHROPIC_BASE_URL` holds: None where it is not set, "" where it is set to nothing."""
    return (os.environ if environ is None else environ).get("ANTHROPIC_BASE_URL")


def provider(environ: Mapping[str, str] | None = None) -> Provider | None:
    """The cloud that `CLAUDE_CODE_USE_BEDROCK`, `…_VERTEX` or `…_FOUNDRY` asks for; None: the vendor itself, or a server
    compatible with it. Of several the first counts."""
    env = os.environ if environ is None else environ
    asked = (one for one in Provider if env.get(f"CLAUDE_CODE_USE_{one.upper()}", "").strip().lower() not in _NO)
    return next(asked, None)


_NO = frozenset({"", "0", "false", "no"})


def provider_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What is set of the variables that clouds are reached by."""
    env = os.environ if environ is None else environ
    begins = ("AWS_", "ANTHROPIC_", "CLOUD_ML_")
    return {name: value for name, value in env.items() if name.startswith(begins) and value.strip()}


def tracing_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The standard variables of OpenTelemetry that are set, `TRACEPARENT` among them."""
    env = os.environ if environ is None else environ
    return {name: value for name, value in env.items() if (name == "TRACEPARENT" or name.startswith("OTEL_")) and value}


def mend_credentials() -> None:
    """Take what a paste left around a key or the address out of the environment: blanks, line ends, marks that nobody sees;
    of the address also the `/v1` and the slash with which other programs want it: the paths begin with it here."""
    for name in CREDENTIALS:
        if value := os.environ.get(name):
            os.environ[name] = value.strip(_UNSEEN)
    if address := os.environ.get("ANTHROPIC_BASE_URL", "").strip(_UNSEEN):
        os.environ["ANTHROPIC_BASE_URL"] = address.rstrip("/").removesuffix("/v1").rstrip("/")


def connection_problem(environ: Mapping[str, str] | None = None) -> str | None:
    """What is wrong with a variable by which the API is reached: one line that names it, without its value, which may be
    secret; None if nothing is."""
    env = os.environ if environ is None else environ
    for name in CREDENTIALS:
        if not all("!" <= char <= "~" for char in env.get(name, "").strip(_UNSEEN)):
            return f"{name} holds a blank or a character that no key has; set it to the key alone"
    for name, schemes in ADDRESSES.items():
        for spelling in (name,) if name.startswith("ANTHROPIC_") else (name, name.lower()):
            address = env.get(spelling, "").strip()
            if address and not _is_address(address, schemes, bare=name != "ANTHROPIC_BASE_URL"):
                kinds = " or ".join(f"{scheme}://" for scheme in schemes)
                return f"{spelling} is no address that can be used: it begins with {kinds}, a host follows"
    return None


def _is_address(text: str, schemes: Sequence[str], *, bare: bool) -> bool:
    """Whether `text` is `scheme://host…`; `bare`: the scheme may be missing."""
    from urllib.parse import urlsplit

    scheme, there, rest = text.partition("://")
    if not there:
        scheme, rest = (schemes[0], text) if bare else ("", "")
    try:
        return scheme.lower() in schemes and bool(urlsplit(f"//{rest}").hostname) and not re.search(r"[\s\x00-\x1f]", rest)
    except ValueError:
        return False


def variable(name: str) -> str:
    """One variable of the environment, credentials included: only for what a person named by its name."""
    return os.environ.get(name, "")


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name holds a credential."""
    upper = name.upper()
    return upper.startswith(SECRET_PREFIXES) or f"_{upper}".endswith(SECRET_ENDINGS)


def steers_git(name: str) -> bool:
    """Whether an environment variable of this name leads git to another repository than that around its directory."""
    return name in REPOSITORY_VARIABLES or name.startswith(REPOSITORY_PREFIXES)


# What makes `cd x` lead elsewhere, runs a file first, splits or matches words otherwise.
SHELL_SURPRISES = frozenset(
    {"CDPATH", "BASH_ENV", "ENV", "GLOBIGNORE", "BASHOPTS", "SHELLOPTS", "POSIXLY_CORRECT", "GREP_OPTIONS"}
)


def put_secrets_again() -> None:
    """Give the credentials in the environment a new place in memory, so that the first one can be written over."""
    for name, value in os.environ.items():
        if is_secret_name(name):
            os.environ[name] = value


def tool_environment(environ: Mapping[str, str] | None = None, **extra: str) -> dict[str, str]:
    """The environment a tool's process gets: credentials out, and what steers git to a repository; `extra` in. No editor or
    pager may wait for a person, and nothing makes a shell read a command line otherwise than it is written."""
    env = os.environ if environ is None else environ
    kept = {k: v for k, v in env.items() if not is_secret_name(k) and not steers_git(k) and k not in SHELL_SURPRISES}
    quiet = {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": "true",
        "EDITOR": "true",
        "VISUAL": "true",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
    }
    return kept | quiet | extra


def secret_values(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Credentials in the environment (or in `environ`), longest first, to be redacted wherever text is stored or shown.

    By name and by shape: what only belongs to a vendor (a region, an address, a model's name) is none, nor are values
    under 8 characters, numbers, common words, names of files. Of an address with a password the password counts, in a
    variable of any name."""
    env = os.environ if environ is None else environ
    found = {secret for name, value in env.items() for secret in _secrets_in(name, value)}
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def _secrets_in(name: str, value: str) -> Iterator[str]:
    if address := _USER_AND_PASSWORD.match(value):
        from urllib.parse import unquote

        candidates = {address[1], unquote(address[1])}
    elif name.upper() == "ANTHROPIC_CUSTOM_HEADERS":  # one header a line; who sends more than the SDK does sends a key
        candidates = {part for line in value.splitlines() for part in line.partition(":")[2].split()}
    elif _names_a_secret(name):
        candidates = {value}
    else:
        return
    yield from (candidate for candidate in candidates if _has_the_shape_of_a_secret(candidate))


def _names_a_secret(name: str) -> bool:
    """Narrower than `is_secret_name`: of a vendor's variables only those that say so."""
    upper = f"_{name.upper()}"
    return upper.endswith(SECRET_ENDINGS) or (is_secret_name(name) and upper.endswith(("_KEY", "_CONNECTION_STRING")))


def _has_the_shape_of_a_secret(value: str) -> bool:
    text = value.strip()
    if len(text) < _LEAST or len(set(text)) < 4 or text.isdecimal():
        return False
    if "://" in text or text.startswith(("$", "<")) or (_WORDS.fullmatch(text) and len(text) < _WORDS_LEAST):
        return False
    return not (_PATH.fullmatch(text) or (text.startswith("/") and _names_a_file(Path(text))))


def _names_a_file(path: Path) -> bool:
    """Keys may begin with a slash, too: it is a name if the file is there, or at least its directory."""
    try:
        return os.path.lexists(path) or (len(path.parts) > 2 and path.parent.is_dir())
    except (OSError, ValueError):
        return False


def jittered(delay: float, share: float, rng: random.Random) -> float:
    """`delay` plus up to `share` of it: never less, so that a server's own wait is kept."""
    return delay * (1 + share * rng.random())
