"""Plugins: the two layouts, what is wrong with one, and which count where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.agents import plugins
from coordinator.agents.plugins import MCP_SCHEMA, SCHEMA, Plugin
from worker_agent.errors import ConfigError
from worker_agent.mcp.config import expanded
from worker_agent.skills import SkillIndex
from worker_agent.tools.trust import NOTHING, TrustStore

AGENT = "---\nname: helper\ndescription: Helps.\npermissionMode: bypassPermissions\nmcpServers: [{x: {command: y}}]\n---\nHelp."


def write(root: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def standard(root: Path, servers: Any = None, **manifest: Any) -> Path:
    write(root, plugin_DOT_json={"$schema": SCHEMA, "name": "tools.a"} | manifest)
    if servers is not None:
        write(root, mcp_DOT_json={"$schema": MCP_SCHEMA, "mcpServers": servers})
    return root


def read(root: Path) -> Plugin:
    return plugins.read(root, root.parent / "data")


def test_a_plugin_of_the_standard_brings_skills_and_servers_that_stay_inside(tmp_path: Path) -> None:
    root = standard(
        tmp_path / "p",
        {
            "own": {
                "type": "stdio",
                "command": "./bin/x",
                "args": ["${PLUGIN_ROOT}/c", "${HOME}"],
                "env": {"D": "${PLUGIN_DATA}/d"},
            },
            "bare": {"type": "stdio", "command": "npx", "cwd": "${PLUGIN_DATA}/w"},
            "web": {"type": "streamable-http", "url": "https://x/${A}"},
            "here": {"type": "sse", "url": "http://127.0.0.1:1/x"},
            "out": {"type": "stdio", "command": "../x"},
            "absolute": {"type": "stdio", "command": "/bin/sh"},
            "elsewhere": {"type": "stdio", "command": "x", "cwd": "/tmp"},
            "leaves": {"type": "stdio", "command": "x", "cwd": "./../.."},
            "untyped": {"command": "x"},
            "closed": {"type": "stdio", "command": "x", "timeout": 3},
            "mixed": {"type": "stdio", "command": "x", "url": "https://x"},
            "reserved": {"type": "stdio", "command": "x", "env": {"PLUGIN_ROOT": "/"}},
            "plain": {"type": "streamable-http", "url": "http://example.com/mcp"},
            "user": {"type": "streamable-http", "url": "https://me@example.com/mcp"},
        },
        version="1",
        surprise=True,
    )
    write(root, skills__deploy__SKILL_DOT_md="---\nname: deploy\ndescription: d\n---\nx")
    plugin = read(root)
    data = str(tmp_path / "data" / "tools.a")
    assert [s.name for s in plugin.servers] == [f"plugin_tools_a_{n}" for n in ("own", "bare", "web", "here")]
    own, bare, web = (expanded(server, lambda name: "set")[0] for server in plugin.servers[:3])
    assert (own.command, own.args, own.cwd) == (str(root / "bin/x"), (f"{root}/c", "${HOME}"), str(root))
    assert dict(own.env) == {"D": f"{data}/d", "PLUGIN_ROOT": str(root), "PLUGIN_DATA": data}
    assert (bare.command, bare.cwd, web.url) == ("npx", f"{data}/w", "https://x/${A}")
    assert (plugin.name, plugin.version, plugin.skills) == ("tools.a", "1", ("deploy",))
    assert plugin.problems[0] == "plugin.json: unknown field 'surprise'"
    left = [text.split("'")[1] for text in plugin.problems[1:]]
    assert left == ["out", "absolute", "elsewhere", "leaves", "untyped", "closed", "mixed", "reserved", "plain", "user"]


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ({"$schema": "https://agent-plugins.org/schemas/2.0.0/plugin.schema.json"}, "`$schema` is"),
        *(({"name": name}, "`name`") for name in ("My-Plugin", "-start", "has--double", "too..many", "", 3, "x" * 65)),
        ({"version": 1}, "`version` is no string"),
        ({"author": {"name": "a", "phone": "b"}}, "`author`"),
        ({"keywords": "x"}, "`keywords`"),
    ],
)
def test_a_manifest_of_the_standard_that_breaks_a_rule_is_no_plugin(tmp_path: Path, manifest: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why.replace("$", r"\$")):
        read(standard(tmp_path / "p", **manifest))


@pytest.mark.parametrize(
    "config", [{"mcpServers": {}}, {"$schema": MCP_SCHEMA, "mcpServers": {}, "more": 1}, {"$schema": MCP_SCHEMA}, "{"]
)
def test_servers_of_the_standard_that_cannot_be_read_leave_the_rest_of_the_plugin(tmp_path: Path, config: Any) -> None:
    plugin = read(write(standard(tmp_path / "p"), mcp_DOT_json=config))
    assert plugin.servers == () and len(plugin.problems) == 1 and "mcp.json" in plugin.problems[0]


def test_a_link_out_of_a_plugin_is_followed_nowhere(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", plugin_DOT_json={"$schema": SCHEMA, "name": "x"}, SKILL_DOT_md="x", a_DOT_md=AGENT)
    root = standard(tmp_path / "p")
    (root / "skills" / "s").mkdir(parents=True)
    (root / "skills" / "s" / "SKILL.md").symlink_to(outside / "SKILL.md")
    assert read(root).skills == ()
    (root / "plugin.json").unlink()
    (root / "plugin.json").symlink_to(outside / "plugin.json")
    with pytest.raises(ConfigError, match="leads out of"):
        read(root)
    with pytest.raises(ConfigError, match="leads out of the plugin"):
        read(claude(tmp_path / "c", hooks="../outside/plugin.json"))


def test_a_plugin_of_the_standard_offers_only_skills_that_hold_theirs(tmp_path: Path) -> None:
    heads = {
        "good": "name: good\ndescription: d",
        "other": "name: good\ndescription: d",
        "bare": "name: bare",
        "Upper": "name: Upper\ndescription: d",
        "long": f"name: long\ndescription: {'d' * 1025}",
    }
    root = standard(tmp_path / "p")
    for name, head in heads.items():
        (root / "skills" / name).mkdir(parents=True)
        (root / "skills" / name / "SKILL.md").write_text(f"---\n{head}\n---\nx")
    found = plugins.load(tmp_path, home=tmp_path / "home", data=tmp_path, trust=NOTHING, given=[root])
    index = SkillIndex(tmp_path, plugins=found.roots, strict=found.strict)
    assert [skill.name for skill in index.discover()] == ["tools.a:good"]
    assert sorted(p.split("/")[1] for p in found.problems) == ["Upper", "bare", "long", "other"]
    assert len(SkillIndex(tmp_path, plugins=found.roots).discover()) == 5


def claude(root: Path, **manifest: Any) -> Path:
    (root / ".claude-plugin").mkdir(parents=True)
    (root / ".claude-plugin" / "plugin.json").write_text(json.dumps({"name": "acme"} | manifest))
    return root


def test_a_plugin_of_claudes_layout_brings_agents_without_rights_hooks_and_servers(tmp_path: Path) -> None:
    root = claude(tmp_path / "p", version="2", lspServers={})
    write(
        root,
        agents__review__helper_DOT_md=AGENT,
        agents__broken_DOT_md="---\nname: BAD NAME\ndescription: x\n---\n",
        hooks__hooks_DOT_json={"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "${CLAUDE_PLUGIN_ROOT}/x"}]}]}},
        _DOT_mcp_DOT_json={"mcpServers": {"my db": {"command": "${CLAUDE_PLUGIN_ROOT}/db", "env": {"A": "${B:-c}"}}}},
    )
    plugin = read(root)
    (agent,) = plugin.agents
    assert (agent.name, agent.permission_mode, agent.mcp_servers) == ("acme:review:helper", None, ())
    (handler,) = plugin.hooks.handlers("Stop")
    assert dict(handler.environment)["CLAUDE_PLUGIN_ROOT"] == str(root)
    server, missing = expanded(plugin.servers[0], lambda name: "")
    assert (server.name, server.command, server.env["A"], missing) == ("plugin_acme_my_db", f"{root}/db", "c", ())
    assert server.env["CLAUDE_PLUGIN_DATA"] == server.data == str(tmp_path / "data" / "acme")
    assert plugin.problems[0] == "passed over: lspServers" and "broken.md is left out" in plugin.problems[1]


def test_inline_parts_and_other_paths_of_a_manifest_count(tmp_path: Path) -> None:
    root = claude(tmp_path / "p", mcpServers={"a": {"command": "x"}}, hooks="./own.json", agents=["./more/one.md"])
    write(root, own_DOT_json={"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]}, more__one_DOT_md=AGENT)
    plugin = read(root)
    assert [s.name for s in plugin.servers] == ["plugin_acme_a"]
    assert [a.name for a in plugin.agents] == ["acme:helper"] and len(plugin.hooks.groups) == 1


def test_a_plugin_whose_fence_cannot_be_read_is_not_used_without_it(tmp_path: Path) -> None:
    hooks = {"PreToolUse": [{"hooks": [{"type": "prompt", "prompt": "x"}]}]}
    with pytest.raises(ConfigError, match="it may refuse calls"):
        read(claude(tmp_path / "p", hooks=hooks))


def test_a_repositorys_plugins_count_when_it_is_trusted_and_as_they_were_then(tmp_path: Path) -> None:
    root, home = tmp_path / "repo", tmp_path / "home"
    (root / ".git").mkdir(parents=True)
    place = claude(root / ".agents" / "plugins" / "acme", mcpServers={"a": {"command": "x"}})
    claude(home / ".agents" / "plugins" / "acme", version="own")
    store = TrustStore(tmp_path / "trust.json")

    def load() -> plugins.Plugins:
        return plugins.load(root, home=home, data=tmp_path / "data", trust=store.of(root))

    assert [p.version for p in load().found] == ["own"] and "until `coordinator trust`" in load().problems[0]
    store.trust(root, plugins.look(root))
    assert [s.name for s in load().servers] == ["plugin_acme_a"] and "has the name 'acme', too" in load().problems[0]
    (place / ".claude-plugin" / "plugin.json").write_text(
        json.dumps({"name": "acme", "mcpServers": {"a": {"command": "evil"}}})
    )
    assert [p.version for p in load().found] == ["own"] and "not as it was trusted" in load().problems[0]


def test_what_claude_code_installed_counts_where_the_persons_settings_enable_it(tmp_path: Path) -> None:
    home, installed = tmp_path / "home", claude(tmp_path / "cache" / "acme")
    listed = {
        "version": 2,
        "plugins": {n: [{"scope": "user", "installPath": str(installed)}] for n in ("acme@shop", "off@shop")},
    }
    write(home, _DOT_claude__settings_DOT_json={"enabledPlugins": {"acme@shop": True, "off@shop": False}})
    path = home / ".claude" / "plugins" / "installed_plugins.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(listed))
    found = plugins.load(tmp_path, home=home, data=tmp_path / "data", trust=NOTHING)
    assert [p.name for p in found.found] == ["acme"] and found.problems == ()
