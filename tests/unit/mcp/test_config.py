"""Where MCP servers are configured, which entry wins, and what lets one of the project run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker_agent.errors import ConfigError
from worker_agent.mcp.approvals import Approvals
from worker_agent.mcp.config import Configured, Gate, Scope, ServerConfig, Standing, expanded, load


def write(path: Path, **servers: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))


class Places:
    """A home and a repository with a directory `sub` in it."""

    def __init__(self, tmp: Path) -> None:
        self.home, self.root = tmp / "home", tmp / "repo"
        self.sub = self.root / "sub"
        self.home.mkdir()
        self.sub.mkdir(parents=True)

    def load(self, gate: Gate = Gate(trusted=True), **more: Any) -> Configured:
        return load(self.sub, home=self.home, root=self.root, gate=gate, **more)

    def standing(self, gate: Gate) -> dict[str, str]:
        return {server.name: str(server.standing) for server in self.load(gate).servers}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_one_whole_entry_wins_flag_before_local_before_project_before_user(places: Places) -> None:
    names = ("a", "b", "c", "d")
    user = {"mcpServers": {n: {"command": "user"} for n in names}, "numStartups": 7,
            "projects": {str(places.root): {"mcpServers": {n: {"command": "local"} for n in names[:2]}}}}  # fmt: skip
    (places.home / ".claude.json").write_text(json.dumps(user))
    write(places.root / ".mcp.json", **{n: {"command": "project", "args": ["x"]} for n in names[:3]})
    write(places.sub / ".mcp.json", c={"command": "nearer"})
    found = places.load(given=['{"mcpServers": {"a": {"command": "flag"}}}'])
    assert {s.name: (s.command, str(s.scope), s.args) for s in found.servers} == {
        "a": ("flag", "flag", ()),
        "b": ("local", "local", ()),
        "c": ("nearer", "project", ()),
        "d": ("user", "user", ()),
    }
    assert [(s.name, s.command) for s in found.shadowed][:3] == [("a", "local"), ("a", "project"), ("b", "project")]
    assert [s.name for s in places.load(given=['{"x": {"command": "y"}}'], only_given=True).servers] == ["x"]


def test_a_servers_transport_is_read_and_a_wrong_entry_is_named_and_left_out(places: Places) -> None:
    write(
        places.root / ".mcp.json",
        http={"type": "streamable-http", "url": "https://x/mcp", "headers": {"A": "b"}, "timeout": 1500},
        sse={"type": "sse", "url": "https://x/sse"},
        number={"command": "x", "env": {"N": 1, "B": True}, "extra": 1},
        untyped={"url": "https://x"},
        socket={"type": "ws", "url": "wss://x"},
        helper={"type": "http", "url": "https://x", "headersHelper": "y"},
        listed={"command": "x", "args": "no list"},
        nothing={},
        text="x",
    )
    found = places.load()
    assert [(s.name, s.kind, s.timeout) for s in found.servers] == [
        ("http", "http", 1.5), ("sse", "sse", None), ("number", "stdio", None),
    ]  # fmt: skip
    assert found.servers[2].env == {"N": "1", "B": "true"}
    said = [str(p).partition(": ")[2] for p in found.problems]
    assert said == [
        "the MCP server 'number': passed over: extra",
        'the MCP server \'untyped\' is left out: it has a `url` and no `type`; write "type": "http"',
        "the MCP server 'socket' is left out: there is no transport 'ws' here; there are stdio, http, streamable-http, sse",
        "the MCP server 'helper' is left out: `headersHelper` is not supported; write `headers`, with ${VAR} for what is secret",
        "the MCP server 'listed' is left out: `args` is no list of strings",
        "the MCP server 'nothing' is left out: `command` is missing",
        "the MCP server 'text' is left out: it is no object",
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [("{", "is no JSON"), ("[]", "is no JSON object"), ('{"mcpServers": 3}', "`mcpServers` is no object")],
)
def test_a_file_that_is_none_is_a_line_and_behind_a_flag_an_error(places: Places, content: str, why: str) -> None:
    (places.root / ".mcp.json").write_text(content)
    (problem,) = places.load().problems
    assert why in str(problem)
    with pytest.raises(ConfigError, match=why):
        places.load(given=[str(places.root / ".mcp.json")])
    with pytest.raises(ConfigError, match="cannot be read"):
        places.load(given=["no-such-file.json"])


def test_names_that_a_model_could_not_tell_apart_are_a_problem_of_the_later_one(places: Places) -> None:
    write(places.root / ".mcp.json", **{"my db": {"command": "1"}, "my.db": {"command": "2"}})
    found = places.load()
    assert [s.name for s in found.servers] == ["my db"]
    assert "would be named like those of 'my db'" in str(found.problems[0])


def test_nothing_of_an_untrusted_repository_may_run_whatever_settings_enable(places: Places) -> None:
    write(places.root / ".mcp.json", a={"command": "1"}, b={"command": "2"})
    assert set(places.standing(Gate(enabled={"a"}, all_enabled=True)).values()) == {"needs approval"}
    assert "`coordinator mcp approve a`" in places.load(Gate()).held_back[0]


@pytest.mark.parametrize(
    ("gate", "a", "b"),
    [
        (Gate(trusted=True), "ready", "ready"),
        (Gate(trusted=True, enabled={"a"}), "ready", "not enabled"),
        (Gate(trusted=True, enabled={"a"}, all_enabled=True), "ready", "ready"),
        (Gate(trusted=True, disabled={"a"}, all_enabled=True), "disabled", "ready"),
        (Gate(approved=lambda server: server.name == "a"), "ready", "needs approval"),
        (
            Gate(trusted=True, all_enabled=True, counts=lambda path, servers: "b" not in servers),
            "needs approval",
            "needs approval",
        ),
        (Gate(approved=lambda server: True, disabled={"a"}), "disabled", "ready"),
    ],
)
def test_trust_approval_and_the_three_keys_of_settings_decide_over_the_projects_servers(
    places: Places, gate: Gate, a: str, b: str
) -> None:
    write(places.root / ".mcp.json", a={"command": "1"}, b={"command": "2"})
    write(places.home / ".claude.json", own={"command": "3"})
    assert places.standing(gate) == {"a": a, "b": b, "own": "ready"}


def test_an_approval_holds_for_this_very_entry_and_no_other_of_its_name(tmp_path: Path) -> None:
    def server(command: str) -> ServerConfig:
        return ServerConfig(name="a", kind="stdio", scope=Scope.PROJECT, source="x", command=command)

    approvals = Approvals(tmp_path / "deep" / "mcp-approvals.json")
    approvals.approve(tmp_path, server("good"))
    assert [approvals.holds(tmp_path, server(c)) for c in ("good", "evil")] == [True, False]
    assert not approvals.holds(tmp_path / "elsewhere", server("good"))
    assert (approvals.revoke(tmp_path, "a"), approvals.revoke(tmp_path, "a")) == (True, False)
    approvals.path.write_text("{")
    assert not approvals.holds(tmp_path, server("good"))
    with pytest.raises(ConfigError, match="cannot be read"):
        approvals.approve(tmp_path, server("good"))
    assert approvals.path.read_text() == "{"


def test_a_link_out_of_an_untrusted_project_is_no_file_of_it(places: Places, tmp_path: Path) -> None:
    write(tmp_path / "outside.json", a={"command": "1"})
    (places.root / ".mcp.json").symlink_to(tmp_path / "outside.json")
    assert places.load(Gate()).servers == ()
    assert "link out of the project" in str(places.load(Gate()).problems[0])
    assert [s.name for s in places.load(Gate(trusted=True)).servers] == ["a"]


def test_variables_are_replaced_with_defaults_and_what_is_not_set_stays_and_is_named() -> None:
    server = ServerConfig(
        name="a", kind="stdio", scope=Scope.PLUGIN, source="x", command="${PLUGIN_ROOT}/run", args=("${A:-one}", "${A}", "${B:-}"),
        env={"X": "${SET}-${SET:-no}"}, url="${GONE}/mcp", headers={"K": "Bearer ${SET}"}, variables={"PLUGIN_ROOT": "/p"},
    )  # fmt: skip
    full, missing = expanded(server, lambda name: {"SET": "s", "PLUGIN_ROOT": "not this"}.get(name, ""))
    assert (full.command, full.args, dict(full.env)) == ("/p/run", ("one", "${A}", ""), {"X": "s-s"})
    assert (full.url, full.headers["K"], missing) == ("${GONE}/mcp", "Bearer s", ("A", "GONE"))
    assert full.standing is Standing.READY
