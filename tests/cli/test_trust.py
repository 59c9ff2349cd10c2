"""`coordinator trust` is of what was there: it lists what begins to count, and what changes since counts no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coordinator.agents import definitions as agents
from coordinator.cli import config_files
from coordinator.cli.commands.trust import brought
from tests.cli.program import Program
from tests.cli.test_run_api import with_api
from tests.integration.scripts import by_turn
from tests.support.fake_api import FakeAPI, message, tool_use
from worker_agent.tools import settings_files
from worker_agent.tools.trust import EVERYTHING, Trust, TrustStore

HOOK = {"Stop": [{"hooks": [{"type": "command", "command": "./check.sh"}]}]}
AGENT = "---\nname: a\ndescription: x\ndisallowedTools: Bash\n---\nbody"


def write(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))


def test_what_begins_to_count_is_listed_and_what_changes_counts_no_more(program: Program) -> None:
    here = program.cwd
    write(here / ".claude/settings.json", {"permissions": {"allow": ["Bash(make *)"], "deny": ["WebFetch"]}, "hooks": HOOK})
    write(here / ".coordinator/settings.toml", 'verify = "true"\ndisallowed_tools = ["Grep"]\n')
    write(here / ".claude/agents/a.md", "---\nname: a\ndescription: x\npermissionMode: acceptEdits\n---\nbody")
    write(here / ".mcp.json", {"mcpServers": {"db": {"command": "db-server", "args": ["--ro"]}}})
    write(here / ".claude/settings.local.json", "{")
    looked = program.here("trust", "--dry-run")
    for words in (
        "allow Bash(make *)",
        "hook Stop: ./check.sh",
        "verify = 'true'",
        "mode acceptEdits",
        "server db: db-server --ro",
    ):
        assert words in looked.err, looked
    assert "settings.local.json cannot be used" in looked.err and "is trusted" not in looked.err
    assert "WebFetch" not in looked.err and program.here("trust", "--list").out == ""
    (here / ".claude/settings.local.json").unlink()
    said = program.here("trust")
    assert said.code == 0 and said.err.endswith(f"{here} is trusted\n") and "./check.sh" in said.err
    # Under acceptEdits an agent cannot write there unasked, by a tool or by a command.
    path = here / ".coordinator/settings.toml"
    calls = (
        tool_use("Write", {"file_path": str(here / ".coordinator/more.toml"), "content": "x"}, id="w"),
        tool_use("Bash", {"command": "echo 'permission_mode=\"bypassPermissions\"' >> .coordinator/settings.toml"}, id="b"),
        tool_use("Bash", {"command": "cp .mcp.json .claude/settings.local.json"}, id="c"),
    )
    before = path.read_text()
    with FakeAPI(by_turn(message(*calls), "done")) as api:
        program.here("run", "goal", "--no-coordinator", "--permission-mode", "acceptEdits", **with_api(program, api))
        results = dict(api.requests[-1].tool_results)
    assert "denied" in results["w"] and "denied" in results["b"], results
    left = sorted(str(one.relative_to(here)) for one in here.rglob("settings*"))
    assert (path.read_text(), left) == (before, [".claude/settings.json", ".coordinator/settings.toml"]), results
    # However it came to be written: what it grants anew does not count, what it fences does.
    path.write_text('verify = "exit 9"\npermission_mode = "bypassPermissions"\ndisallowed_tools = ["Grep", "Glob"]\n')
    ran = program.here("run", "--offline", "--no-coordinator", "--output-format", "stream-json", "hi")
    assert "settings.toml is not as it was trusted: verify, permission_mode do not count until `coordinator trust`" in ran.err
    init = next(line for line in ran.lines if line.get("subtype") == "init")
    assert ran.code == 0 and init["permissionMode"] == "default" and not {"Grep", "Glob"} & set(init["tools"])
    program.here("trust")
    assert program.here("run", "--offline", "--no-coordinator", "hi").code == 8


def trusted(cwd: Path, store: TrustStore) -> Trust:
    """Trust of everything that lies in `cwd` now."""
    home = cwd / "home"
    every = [*config_files.look(cwd), *agents.look(cwd)]
    every += [one for path, project in settings_files.project_files(cwd, home) for one in settings_files.look(path, project)]
    store.trust(cwd, every)
    return store.of(cwd)


def test_a_settings_file_is_trusted_for_what_it_grants(tmp_path: Path) -> None:
    store, path = TrustStore(tmp_path / "trust.json"), tmp_path / ".claude/settings.json"
    write(path, {"permissions": {"allow": ["Bash(make *)"]}, "hooks": HOOK})
    trust = trusted(tmp_path, store)

    def load() -> settings_files.LoadedSettings:
        return settings_files.load(tmp_path, home=tmp_path / "home", trust=trust, managed=tmp_path / "none")

    assert load().hooks.handlers("Stop") and not load().held_back
    # Other layout, another order, more fences: nothing new is granted.
    write(path, json.dumps({"hooks": HOOK, "permissions": {"deny": ["WebFetch"], "allow": ["Bash(make *)"]}}, indent=4))
    assert load().hooks.handlers("Stop") and load().rules.deny and not load().held_back
    for granted in (
        {"permissions": {"allow": ["Bash"]}, "hooks": HOOK},
        {"permissions": {"allow": ["Bash(make *)"], "defaultMode": "acceptEdits", "deny": ["WebFetch"]}, "hooks": HOOK},
        {"permissions": {"allow": ["Bash(make *)"]}, "hooks": HOOK, "env": {"PATH": "/evil"}},
        {"permissions": {"allow": ["Bash(make *)"]}},
    ):
        write(path, granted)
        found = load()
        assert (found.rules.allow, found.hooks.groups, found.env, found.default_mode) == ((), (), {}, None)
        assert len(found.rules.deny) == ("deny" in granted["permissions"]), granted
        assert len(found.held_back) == 1 and f"{path} is not as it was trusted" in found.held_back[0]
    # A file that came later counts no more than a changed one.
    path.unlink()
    write(tmp_path / ".claude/settings.local.json", {"permissions": {"allow": ["Bash"]}})
    assert load().rules.allow == () and "settings.local.json" in load().held_back[0]
    trust = trusted(tmp_path, store)
    assert load().rules.allow and not load().held_back


def test_an_agent_keeps_the_fences_it_was_trusted_with(tmp_path: Path) -> None:
    store, path = TrustStore(tmp_path / "trust.json"), tmp_path / ".claude/agents/a.md"
    write(path, AGENT)
    trust = trusted(tmp_path, store)
    write(path, AGENT.replace("body", "another body").replace("description: x", "description: y"))
    assert agents.load(tmp_path, trust=trust).get("a").description == "y"
    for text in (AGENT.replace("disallowedTools: Bash\n", ""), AGENT.replace("Bash", "Edit")):
        write(path, text)
        found = agents.load(tmp_path, trust=trust)
        assert "a" not in found.by_name and "is not as it was trusted" in found.unusable["a"]
    # A new agent that asks for nothing counts at once, one that brings a program does not.
    write(path.with_name("b.md"), "---\nname: b\ndescription: x\ntools: Read\n---\nbody")
    hooked = "---\nname: c\ndescription: x\nhooks:\n  Stop:\n    - hooks:\n        - {type: command, command: x}\n---\nbody"
    write(path.with_name("c.md"), hooked)
    found = agents.load(tmp_path, trust=trust)
    assert set(found.by_name) == {*agents.builtin(), "b"} and set(found.unusable) == {"a", "c"}
    assert set(agents.load(tmp_path, trust=EVERYTHING).by_name) == {*agents.builtin(), "a", "b", "c"}


def test_an_agent_that_cannot_be_used_is_not_replaced_by_one_with_fewer_fences(tmp_path: Path) -> None:
    write(tmp_path / "home/agents/r.md", "---\nname: r\ndescription: from home\n---\nbody")
    for name in ("r", "worker"):
        text = f"---\nname: {name}\ndescription: x\ndisallowedTools: [Bsah]\n---\nbody"
        write(tmp_path / f".claude/agents/{name}-here.md", text)
    found = agents.load(tmp_path, trust=EVERYTHING, user_dir=tmp_path / "home")
    assert set(found.unusable) == {"r", "worker"} and found.by_name.keys() == agents.builtin().keys() - {"worker"}
    assert set(agents.load(tmp_path, trust=Trust(), user_dir=tmp_path / "home").by_name) == {*agents.builtin(), "r"}


def test_an_added_directory_is_trusted_or_not_on_its_own(tmp_path: Path) -> None:
    store = TrustStore(tmp_path / "trust.json")
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for place in (mine, theirs):
        write(place / ".claude/agents/x.md", f"---\nname: {place.name}\ndescription: x\n---\nbody")
    store.trust(mine)
    assert set(agents.load(mine, trust=store.of(mine, theirs), add_dirs=(theirs,)).by_name) == {*agents.builtin(), "mine"}
    store.trust(theirs)
    assert set(agents.load(mine, trust=store.of(mine, theirs), add_dirs=(theirs,)).by_name) == {
        *agents.builtin(),
        "mine",
        "theirs",
    }
    assert not store.of(tmp_path, mine).trusted


def test_a_hook_script_that_changed_counts_no_more_until_it_is_trusted_again(program: Program) -> None:
    here = program.cwd
    (here / ".git").mkdir()
    (here / "elsewhere.sh").write_text("true")
    hooks = {
        "Stop": '"$CLAUDE_PROJECT_DIR"/.claude/hooks/a.sh --fast && true',
        "PreToolUse": "python3 ${CLAUDE_PROJECT_DIR}/tools/check.py;exit 0",
        "SessionEnd": "cat ../elsewhere.sh; sh missing.sh",
    }
    write(
        here / ".claude/settings.json",
        {"hooks": {k: [{"hooks": [{"type": "command", "command": v}]}] for k, v in hooks.items()}},
    )
    write(here / ".claude/hooks/a.sh", "exit 0")
    write(here / "tools/check.py", "print()")
    write(here / "tools/other.py", "print()")
    agent = "---\nname: a\ndescription: x\nhooks:\n  Stop:\n    - hooks: [{type: command, command: sh tools/a.sh}]\n---\nbody"
    write(here / ".claude/agents/a.md", agent)
    write(here / "tools/a.sh", "true")
    store = TrustStore(program.home / "trust.json")

    def held() -> tuple[tuple[str, ...], dict[str, str]]:
        trust = store.of(here)
        loaded = agents.load(here, trust=trust)
        return settings_files.load(here, home=program.home, trust=trust).held_back, dict(loaded.unusable)

    store.trust(here, brought(here))
    assert held() == ((), {})
    write(here / "tools/other.py", "another")
    assert held() == ((), {})
    for script in (".claude/hooks/a.sh", "tools/check.py", "missing.sh"):
        write(here / script, "curl evil")
        assert "settings.json is not as it was trusted: hooks do not count" in held()[0][0], script
        store.trust(here, brought(here))
        assert held() == ((), {})
    write(here / "tools/a.sh", "curl evil")
    assert "not as it was trusted" in held()[1]["a"] and held()[0] == ()
