"""`coordinator mcp`: what is configured, whether it works, and which server of an untrusted directory may run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.context import Context
from coordinator.cli.main import invoke
from tests.support.mcp_servers import entry


class Here:
    """Commands in this process, in a directory with a `.mcp.json`, with a home of their own."""

    def __init__(self, tmp: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
        self.work, self.capfd = tmp / "work", capfd
        self.work.mkdir()
        monkeypatch.chdir(self.work)
        monkeypatch.setenv("HOME", str(tmp / "home"))
        monkeypatch.setenv("COORDINATOR_HOME", str(tmp / "data"))
        (tmp / "home").mkdir()

    def servers(self, **servers: Any) -> None:
        (self.work / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        context = Context()
        try:
            code = invoke(arguments, context)
        finally:
            context.close()
        out, err = self.capfd.readouterr()
        return code, out, err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Here:
    return Here(tmp_path, monkeypatch, capfd)


def standing(here: Here) -> dict[str, str]:
    return {row["name"]: row["status"] for row in json.loads(here("mcp", "list", "--json")[1])}


def test_a_server_of_an_untrusted_directory_runs_after_it_was_approved_as_it_is(here: Here) -> None:
    here.servers(a={"command": "one"}, b={"command": "two"})
    assert standing(here) == {"a": "needs approval", "b": "needs approval"}
    code, out, err = here("mcp", "list")
    assert code == 0 and "RUNS OR REACHES" in out and "`coordinator mcp approve a`" in err
    assert here("mcp", "test", "a")[0] == 1
    code, _, err = here("mcp", "approve", "a")
    assert code == 0 and "the MCP server 'a' may run here: one" in err
    assert standing(here) == {"a": "ready", "b": "needs approval"}
    here.servers(a={"command": "one", "args": ["--more"]})
    assert standing(here) == {"a": "needs approval"}
    assert here("mcp", "approve", "a", "--revoke")[0] == 0
    code, _, err = here("mcp", "approve", "a", "--revoke")
    assert code == 1 and "was not approved" in err
    code, _, err = here("mcp", "approve", "c")
    assert code == 3 and "there is no MCP server 'c' here; there are: a" in err


def test_trust_is_of_the_file_as_it_was_and_settings_narrow_it(here: Here) -> None:
    here.servers(a={"command": "one"}, b={"command": "two"})
    assert here("trust")[0] == 0
    assert standing(here) == {"a": "ready", "b": "ready"}
    home = Path(here.work.parent / "home/.claude")
    home.mkdir()
    (home / "settings.json").write_text('{"enabledMcpjsonServers": ["a"]}')
    assert standing(here) == {"a": "ready", "b": "not enabled"}
    (home / "settings.json").write_text('{"enableAllProjectMcpServers": true, "disabledMcpjsonServers": ["a"]}')
    assert standing(here) == {"a": "disabled", "b": "ready"}
    here.servers(b={"command": "evil"})
    assert standing(here) == {"b": "needs approval"}


def test_what_a_server_offers_is_shown_and_one_that_does_not_start_is_the_exit_code(here: Here, tmp_path: Path) -> None:
    given = tmp_path / "servers.json"
    given.write_text(json.dumps({"mcpServers": {"good": entry("nonsense"), "bad": entry("silent")}}))
    code, out, _ = here("mcp", "test", "--mcp-config", str(given))
    assert code == 1
    assert out.splitlines() == [
        "good: connected to nonsense 0, 1 tool",
        "  mcp__good__fine_tool",
        "  its tool 'fine.tool' is left out: it would be named like 'fine tool'",
        "  its tool 'broken' is left out: its schema is none ('nothing' is not valid under any of the given schemas)",
        "  its tool 'elsewhere' is left out: its schema refers to another document",
        "bad: failed: Connection closed; it said: I cannot start: no database",
    ]
    code, out, _ = here("mcp", "test", "good", "--json", "--mcp-config", str(given))
    (row,) = json.loads(out)
    assert (code, row["status"], row["tools"]) == (0, "connected", ["mcp__good__fine_tool"])


def test_a_configuration_that_cannot_be_used_is_one_line(here: Here) -> None:
    for text, why in (("{", "is no JSON"), ("gone.json", "cannot be read")):
        code, out, err = here("mcp", "list", "--mcp-config", text)
        assert (code, out) == (2, "") and why in err and "Traceback" not in err and len(err.splitlines()) == 1


def test_plugins_are_listed_and_checked(here: Here, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for root, manifest in ((good, {"name": "good", "mcpServers": {"a": {"command": "x"}}}), (bad, {"name": "not good"})):
        (root / ".claude-plugin").mkdir(parents=True)
        (root / ".claude-plugin" / "plugin.json").write_text(json.dumps(manifest))
    code, out, _ = here("plugins", "list", "--json", "--plugin-dir", str(good))
    (row,) = json.loads(out)
    assert (code, row["name"], row["mcp_servers"]) == (0, "good", ["plugin_good_a"])
    assert "1 MCP server" in here("plugins", "list", "--plugin-dir", str(good))[1]
    assert here("plugins", "validate", str(good)) == (0, "", "")
    code, out, _ = here("plugins", "validate", str(good), str(bad))
    assert (code, out.splitlines()) == (1, [f"{bad}: plugin.json: `name` 'not good': letters, digits, - . _, at most 64"])
