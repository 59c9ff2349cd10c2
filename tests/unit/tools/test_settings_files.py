"""Settings files in their order, and what a repository may bring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.errors import ConfigError
from worker_agent.tools.permissions import Mode
from worker_agent.tools.settings_files import LoadedSettings, fences_of, left_out, load
from worker_agent.tools.trust import EVERYTHING, NOTHING


class Bench:
    def __init__(self, tmp_path: Path) -> None:
        self.home, self.project, self.managed = tmp_path / "home", tmp_path / "project", tmp_path / "managed.json"
        (self.project / ".git").mkdir(parents=True)
        self.home.mkdir()

    def write(self, path: Path, data: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data if isinstance(data, str) else json.dumps(data))

    def user(self, data: Any) -> None:
        self.write(self.home / ".claude/settings.json", data)

    def shared(self, data: Any) -> None:
        self.write(self.project / ".claude/settings.json", data)

    def local(self, data: Any) -> None:
        self.write(self.project / ".claude/settings.local.json", data)

    def load(
        self, trusted: bool = True, settings: str | None = None, cwd: Path | None = None, earlier: Sequence[str] = ()
    ) -> LoadedSettings:
        trust = EVERYTHING if trusted else NOTHING
        here = cwd or self.project
        return load(here, home=self.home, trust=trust, settings=settings, earlier=earlier, managed=self.managed)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def permissions(**keys: Any) -> dict[str, Any]:
    return {"permissions": keys}


def test_without_files_nothing_is_set(bench: Bench) -> None:
    assert bench.load() == LoadedSettings()


def test_rules_of_all_files_add_up_in_their_order(bench: Bench) -> None:
    bench.user(permissions(allow=["Bash(u)"], deny=["Bash(du)"]))
    bench.shared(permissions(allow=["Bash(p)"]))
    bench.local(permissions(allow=["Bash(l)"], ask=["Bash(al)"]))
    bench.write(bench.managed, permissions(deny=["Bash(m)"]))
    rules = bench.load(settings=json.dumps(permissions(allow=["Bash(f)"]))).rules
    assert [r.specifier for r in rules.allow] == ["f", "l", "p", "u"]
    assert [r.specifier for r in rules.deny] == ["m", "du"]
    assert str(rules.ask[0].source) == f"{bench.project}/.claude/settings.local.json (permissions.ask[0])"


def test_of_single_values_the_highest_file_wins(bench: Bench) -> None:
    bench.user({"model": "u", "env": {"A": "u", "B": "u"}, **permissions(defaultMode="plan")})
    bench.shared({"model": "p", "env": {"A": "p"}, **permissions(defaultMode="acceptEdits")})
    found = bench.load()
    assert (found.model, found.env, found.default_mode) == ("p", {"A": "p", "B": "u"}, Mode.ACCEPT_EDITS)


def test_an_untrusted_project_brings_only_its_fences(bench: Bench) -> None:
    hooks = {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]}
    bench.shared({
        "hooks": hooks, "env": {"PATH": "/evil"}, "model": "m", "enableAllProjectMcpServers": True, "disabledMcpjsonServers": ["d"],
        **permissions(allow=["Bash"], deny=["Bash(rm *)"], ask=["Edit"], defaultMode="bypassPermissions", additionalDirectories=["/"]),
    })  # fmt: skip
    found = bench.load(trusted=False)
    assert (found.rules.allow, len(found.rules.deny), len(found.rules.ask)) == ((), 1, 1)
    assert found.hooks.handlers("Stop") == ()
    assert (found.env, found.model, found.directories, found.default_mode, found.all_project_servers) == (
        {},
        None,
        (),
        None,
        False,
    )
    assert found.disabled_servers == {"d"}
    assert "coordinator trust" in found.held_back[0] and "hooks" in found.held_back[0]
    trusted = bench.load()
    assert trusted.hooks.handlers("Stop") and trusted.rules.allow and trusted.held_back == ()


def test_an_untrusted_project_may_narrow_the_mode(bench: Bench) -> None:
    bench.shared(permissions(defaultMode="plan"))
    assert bench.load(trusted=False).default_mode is Mode.PLAN


def test_paths_hang_on_the_place_of_their_file(bench: Bench) -> None:
    bench.user(permissions(deny=["Read(/own)"]))
    bench.shared(permissions(deny=["Read(/secrets/**)"]))
    policy = bench.load().policy(cwd=bench.project, home=bench.home)
    assert policy.denies_path(bench.project / "secrets/a")
    assert policy.denies_path(bench.home / ".claude/own")
    assert not policy.denies_path(bench.project / "own")


def test_below_the_root_of_a_repository_its_files_hold_too(bench: Bench) -> None:
    bench.shared(permissions(deny=["Read(/secrets/**)"]))
    (bench.project / "sub").mkdir()
    policy = bench.load(cwd=bench.project / "sub").policy(cwd=bench.project / "sub", home=bench.home)
    assert policy.denies_path(bench.project / "secrets/a")


def test_flags_add_to_the_files_and_the_mode_asked_for_wins(bench: Bench) -> None:
    bench.user(permissions(defaultMode="plan", deny=["WebFetch"]))
    policy = bench.load().policy(
        cwd=bench.project,
        home=bench.home,
        mode="acceptEdits",
        allowed=["Bash(make *)"],
        disallowed=["Edit(x)"],
        roots=[bench.home],
    )
    assert policy.mode is Mode.ACCEPT_EDITS and policy.roots == (bench.project, bench.home)
    assert [r.text for r in policy.rules.deny] == ["Edit(x)", "WebFetch"]


def test_bypassing_can_be_switched_off(bench: Bench) -> None:
    bench.write(bench.managed, permissions(disableBypassPermissionsMode="disable"))
    with pytest.raises(ConfigError, match="switched off"):
        bench.load().mode("bypassPermissions")
    with pytest.raises(ConfigError, match="no permission mode"):
        bench.load().mode("yolo")


@pytest.mark.parametrize(
    "text", ["{", "[]", "7", '{"permissions": []}', '{"permissions": {"deny": "Bash"}}', '{"a": NaN}', "// c\n{}"]
)
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(bench: Bench, text: str) -> None:
    bench.shared(text)
    with pytest.raises(ConfigError, match="settings.json"):
        bench.load(trusted=False)


def test_a_block_list_outside_of_permissions_stops_and_a_sandbox_of_others_is_named(bench: Bench) -> None:
    bench.user({"sandbox": {"filesystem": {"denyWrite": ["."]}}})
    (line,) = bench.load().problems
    assert "`sandbox` is passed over" in line
    bench.user({"disallowedTools": ["Bash(rm:*)"]})
    with pytest.raises(ConfigError, match=r"permissions\.deny"):
        bench.load()


def test_an_empty_file_and_unknown_keys_are_nothing(bench: Bench) -> None:
    bench.shared("")
    bench.user({"whatever": 1, "env": 7, "hooks": {}, "model": 7, "enabledMcpjsonServers": "x"})
    found = bench.load()
    assert (found.env, found.model, found.enabled_servers) == ({}, None, frozenset())
    assert len(found.problems) == 3


@pytest.mark.parametrize(
    "data",
    [
        {"hooks": []},
        {"hooks": "x"},
        {"hooks": {"PreToolUse": [{"hooks": "x"}]}},
        {"permissions": {"deny": ["Bash("]}},
        {"permissions": {"ask": [7]}},
        {"permissions": {"ask": ["Bsah(rm:*)"]}},
        {"permissions": {"deny": ["Shell(rm:*)"]}},
        {"permissions": {"deny": "Bash"}},
        {"permissions": {"defaultMode": ["plan"]}},
        {"disabledMcpjsonServers": "x"},
        {"hooks": {"PreToolUse": [{"hooks": [{"type": "prompt", "prompt": "may it?"}]}]}},
        {"hooks": {"PermissionRequest": [{"hooks": [{"type": "agent", "prompt": "may it?"}]}]}},
        {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x", "args": "y"}]}]}},
        {"Permissions": {}},
        {"permission": {}},
        {"hook": {}},
        {"deny": ["Bash"]},
        {"disabled_mcpjson_servers": []},
        {"permissions": {"Deny": []}},
        {"permissions": {"denny": []}},
        {"permissions": {"denied": []}},
        {"permissions": {"default_mode": "plan"}},
        '{"permissions": {"deny": ["Bash"]}, "permissions": {}}',
        '{"permissions": {"deny": ["Bash"], "deny": []}}',
        '{"hooks": {"Stop": [], "Stop": []}}',
        "[" * 5000,
    ],
)
def test_a_fence_that_cannot_be_read_stops(bench: Bench, data: dict[str, object] | str) -> None:
    bench.user(data)
    with pytest.raises(ConfigError, match="settings.json"):
        bench.load()


def test_a_hook_that_refuses_nothing_and_cannot_be_run_is_one_line(bench: Bench) -> None:
    bench.user({"hooks": {"Stop": [{"hooks": [{"type": "prompt", "prompt": "x"}]}]}})
    (line,) = bench.load().problems
    assert "hooks of type 'prompt' are left out" in line


@pytest.mark.parametrize("value", ["../shared", 7, {"/": 1}, [["/"]], True])
def test_a_wrong_type_for_directories_grants_nothing_and_is_said(bench: Bench, value: object) -> None:
    bench.user({"permissions": {"additionalDirectories": value}})
    found = bench.load()
    assert found.directories == () and len(found.problems) == 1


def test_a_byte_order_mark_is_read_over(bench: Bench) -> None:
    bench.user('\ufeff{"permissions": {"deny": ["Bash"]}}')
    assert bench.load().rules.deny


def test_what_cannot_be_used_is_said(bench: Bench) -> None:
    bench.user(permissions(allow=["Bash("], deny=["Write(x)"], defaultMode="auto"))
    problems = bench.load().problems
    assert len(problems) == 3 and all(str(bench.home) in p for p in problems)


def test_the_flag_takes_a_path_or_json(bench: Bench) -> None:
    bench.write(bench.project / "my.json", permissions(deny=["Bash"]))
    assert bench.load(settings="my.json").rules.deny
    assert bench.load(settings=' {"model": "m"}').model == "m"
    with pytest.raises(ConfigError, match="no such file"):
        bench.load(settings="missing.json")


def test_the_fences_of_a_file_as_it_was_hold_beside_it_and_grant_nothing(bench: Bench) -> None:
    guard = [{"matcher": "Bash", "hooks": [{"type": "command", "command": "guard"}]}]
    tell = [{"hooks": [{"type": "command", "command": "tell"}]}]
    was = {
        **permissions(deny=["Bash(rm:*)"], ask=["Edit"], allow=["Bash(make)"], defaultMode="dontAsk", additionalDirectories=["/x"]),
        "hooks": {"PreToolUse": guard, "Notification": tell}, "env": {"A": "1"}, "model": "m",
        "disabledMcpjsonServers": ["s"], "enableAllProjectMcpServers": True,
    }  # fmt: skip
    bench.write(bench.project / "my.json", was)
    kept = fences_of("my.json", bench.project)
    assert kept is not None and left_out(kept, bench.project) == () and fences_of(kept, bench.project) is None
    bench.write(
        bench.project / "my.json", {**permissions(deny=["Read(k)"], defaultMode="acceptEdits"), "hooks": {"PreToolUse": guard}}
    )
    now = bench.load(settings="my.json", earlier=[kept])
    assert [rule.text for rule in now.rules.deny] == ["Read(k)", "Bash(rm:*)"] and [r.text for r in now.rules.ask] == ["Edit"]
    assert (now.rules.allow, now.directories, now.env, now.model, now.all_project_servers) == ((), (), {}, None, False)
    assert (now.default_mode, now.disabled_servers) == (Mode.DONT_ASK, {"s"})
    assert [h.only_refuses for h in now.hooks.handlers("PreToolUse", "Bash")] == [False]  # it is still there: once, as it is
    bench.write(bench.project / "my.json", {})
    then = bench.load(settings="my.json", earlier=[kept])
    assert [(h.label, h.only_refuses) for h in then.hooks.handlers("PreToolUse", "Bash")] == [("guard", True)]
    assert not then.hooks.handlers("Notification") and str(then.rules.deny[0].source).startswith("my.json, as it was (")


def test_a_file_without_fences_leaves_none(bench: Bench) -> None:
    bench.write(bench.project / "my.json", {**permissions(allow=["Bash"], defaultMode="acceptEdits"), "env": {"A": "1"}})
    assert fences_of("my.json", bench.project) is None


def test_credentials_do_not_reach_tools_through_env(bench: Bench) -> None:
    bench.user({"env": {"ANTHROPIC_API_KEY": "x", "MY_TOKEN": "x", "FINE": "1", "N": 7}})
    assert bench.load().env == {"FINE": "1", "N": "7"}


def test_directories_hang_on_their_file(bench: Bench) -> None:
    bench.shared(permissions(additionalDirectories=["../lib", "~/notes", "/abs"]))
    assert bench.load().directories == (bench.project / "../lib", bench.home / "notes", Path("/abs"))


KEYS = (
    "permissions", "permissions.allow", "permissions.ask", "permissions.deny", "permissions.defaultMode",
    "permissions.additionalDirectories", "permissions.disableBypassPermissionsMode", "hooks", "hooks.PreToolUse", "env", "model",
    "enabledMcpjsonServers", "disabledMcpjsonServers", "enableAllProjectMcpServers",
)  # fmt: skip
WRONG = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.sampled_from(["", "/", "*", "Bash", "yes", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "hooks", "Bash", "/"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(key=st.sampled_from(KEYS), value=WRONG)
@settings(max_examples=300, deadline=None)
def test_a_wrong_type_anywhere_stops_or_is_the_safe_side(key: str, value: object) -> None:
    """Whatever stands where, it is one line, or grants no more than it says: the fences beside it hold."""
    data: dict[str, Any] = {"permissions": {"deny": ["WebFetch"], "defaultMode": "plan"}}
    *above, last = key.split(".")
    place = data.setdefault(above[0], {}) if above else data
    place[last] = value
    try:
        found = load(
            Path("/nowhere"), home=Path("/nowhere/h"), trust=NOTHING, settings=json.dumps(data), managed=Path("/nowhere/m")
        )
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
        return
    strings = isinstance(value, list) and all(isinstance(item, str) for item in value)
    assert not found.rules.allow or (key == "permissions.allow" and isinstance(value, list))
    assert not found.directories or (key == "permissions.additionalDirectories" and strings)
    assert not found.env or (key == "env" and isinstance(value, dict))
    assert found.model is None or (key == "model" and isinstance(value, str))
    assert not found.enabled_servers or (key == "enabledMcpjsonServers" and isinstance(value, list))
    assert not found.all_project_servers or (key == "enableAllProjectMcpServers" and value is True)
    assert found.default_mode is Mode.PLAN or key in ("permissions", "permissions.defaultMode")
    assert [rule.text for rule in found.rules.deny] == ["WebFetch"] or key in ("permissions", "permissions.deny")
    assert found.bypass_disabled == (key == "permissions.disableBypassPermissionsMode" and value is not None)
