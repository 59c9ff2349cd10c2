"""What fences a run: said twice, kept when a session goes on, and never taken from the wrong directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

from coordinator.agents import definitions as agents
from coordinator.agents.rights import effective_mode
from coordinator.cli import config_files, continuing
from coordinator.cli.commands.chat import chat
from coordinator.cli.commands.run import options_of, resume, run
from coordinator.cli.context import Context
from coordinator.cli.failures import Failure
from coordinator.options import RunOptions
from tasks import sessions
from tests.cli.program import Program, Ran
from tests.cli.test_run_api import with_api
from tests.support.fake_api import FakeAPI
from worker_agent.context.instructions import Instructions
from worker_agent.tools.permissions import Policy
from worker_agent.tools.trust import NOTHING, TrustStore


def test_denials_add_up_and_a_single_value_is_not_said_twice(program: Program) -> None:
    both = ("--disallowed-tools", "Bash(rm:*)", "--disallowed-tools", "Bash(curl:*)")
    ran = program.here("permissions", "test", "Bash(rm x)", *both, "--json")
    assert ran.json["decision"] == "deny", ran
    twice = program.here("run", "--offline", "--verify", "true", "--verify", "false", "hi")
    assert twice.code == 2 and "--verify is given twice" in twice.err


def test_a_bad_value_is_named_as_it_was_written(program: Program) -> None:
    assert "COORDINATOR_MAX_WORKERS" in program.here("run", "--offline", "hi", COORDINATOR_MAX_WORKERS="abc").err
    (program.cwd / ".coordinator").mkdir()
    (program.cwd / ".coordinator/settings.toml").write_text('append_system_prompt = "x"\nmax_budget_usd = 1\n')
    assert "append_system_prompt, max_budget_usd do not count" in program.here("run", "--offline", "hi").err


def test_a_session_goes_on_behind_its_fences(program: Program) -> None:
    first = program.here("run", "--offline", "--plan-only", "--verify", "exit 3", "--disallowed-tools", "Bash", "hi")
    again = program.here("run", "--offline", "-c", "more")
    assert first.code == again.code != 0, (first.err, again.err)


def init(ran: Ran) -> dict[str, Any]:
    """What a run says of itself before it begins."""
    return next(line for line in ran.lines if line.get("subtype") == "init")


def test_only_a_flag_widens_a_session_and_says_so(program: Program) -> None:
    (outside := program.home / "more").mkdir(parents=True)
    inline = json.dumps({"permissions": {"deny": ["Edit"]}, "env": {"SOME_TOKEN": "not-to-be-stored-1"}})
    more = json.dumps({"permissions": {"deny": ["Write"]}})
    asked = ("--permission-mode", "plan", "--settings", inline, "--disallowed-tools", "Grep", "--no-coordinator")
    shown = ("--output-format", "stream-json")
    assert program.here("run", "--offline", "hi", *asked).code == 0
    (session,) = program.here("sessions", "list", "-q").out.split()
    # A variable, the settings of the caller's directory: neither widens, both may tighten.
    elsewhere = Program(program.home, outside)
    (outside / ".coordinator").mkdir()
    (outside / ".coordinator/settings.toml").write_text('permission_mode = "bypassPermissions"\nverify = "exit 9"\n')
    elsewhere("trust")
    ran = elsewhere("resume", session, "go on", *shown, COORDINATOR_PERMISSION_MODE="acceptEdits")
    assert (ran.code, init(ran)["permissionMode"]) == (0, "plan"), ran.err
    assert not {"Grep", "Edit"} & set(init(ran)["tools"])
    assert "only a flag widens" in ran.err and "environment of the session's --settings was not stored" in ran.err
    # A flag does, with one line; what it fences holds ever after, what it widens for this run.
    flags = ("--permission-mode", "acceptEdits", "--settings", more, "--disallowed-tools", "Glob")
    ran = program.here("resume", session, "go on", *shown, *flags)
    assert init(ran)["permissionMode"] == "acceptEdits" and "--permission-mode: acceptEdits holds for this run" in ran.err
    ran = program.here("resume", session, "go on", *shown)
    assert init(ran)["permissionMode"] == "plan"
    assert not {"Grep", "Glob", "Edit", "Write"} & set(init(ran)["tools"]), init(ran)
    assert b"not-to-be-stored-1" not in b"".join(path.read_bytes() for path in (program.home / "data").glob("*.db*"))


def test_settings_whose_fences_were_not_stored_are_asked_for_again(program: Program) -> None:
    hook = {"type": "http", "url": "http://127.0.0.1:9/", "headers": {"Authorization": "Bearer not-to-be-stored-2"}}
    inline = json.dumps({"hooks": {"Notification": [{"hooks": [hook]}]}})
    assert program.here("run", "--offline", "hi", "--settings", inline).code == 0
    refused = program.here("run", "--offline", "-c", "more")
    assert refused.code == 2 and "give --settings again" in refused.err and refused.err.count("\n") == 1, refused.err
    assert program.here("run", "--offline", "-c", "more", "--settings", inline).code == 0


def test_a_settings_file_that_a_person_changes_meanwhile_loosens_nothing(program: Program) -> None:
    shown = ("--output-format", "stream-json")
    (file := program.cwd / "ci.json").write_text(json.dumps({"permissions": {"deny": ["Edit"], "defaultMode": "plan"}}))
    assert program.here("run", "--offline", "--no-coordinator", "--settings", "ci.json", "hi").code == 0
    (session,) = program.here("sessions", "list", "-q").out.split()
    file.write_text(json.dumps({"permissions": {"deny": ["Grep"], "defaultMode": "acceptEdits"}}))
    (elsewhere := program.home / "elsewhere").mkdir()
    ran = Program(program.home, elsewhere)("resume", session, "go on", *shown)
    assert init(ran)["permissionMode"] == "plan" and not {"Edit", "Grep"} & set(init(ran)["tools"]), ran
    file.write_text("{}")
    for flags in ((), ("--settings", "ci.json"), ("--fork-session",)):
        ran = program.here("run", "--offline", "-r", session, "go on", *shown, *flags)
        assert init(ran)["permissionMode"] == "plan" and not {"Edit", "Grep"} & set(init(ran)["tools"]), (flags, ran)
    new = program.here("run", "--offline", "--no-coordinator", "--settings", "ci.json", "hi", *shown)
    assert {"Edit", "Grep"} <= set(init(new)["tools"])  # the file as it is now, where nothing held before


def test_of_a_settings_file_secrets_are_not_stored_and_their_fences_are_missed_if_they_change(program: Program) -> None:
    hook = {"type": "http", "url": "http://127.0.0.1:9/", "headers": {"Authorization": "Bearer not-to-be-stored-3"}}
    both = {"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}, "permissions": {"deny": ["Edit"]}}
    (file := program.cwd / "ci.json").write_text(json.dumps(both))
    assert program.here("run", "--offline", "hi", "--settings", "ci.json").code == 0
    file.write_text(json.dumps(both | {"model": "m"}))
    assert program.here("run", "--offline", "-c", "more").code == 0
    file.write_text(json.dumps({"permissions": {"deny": ["Edit"]}}))
    refused = program.here("run", "--offline", "-c", "more")
    assert refused.code == 2 and "give --settings again" in refused.err and refused.err.count("\n") == 1, refused.err
    assert program.here("run", "--offline", "-c", "more", "--settings", "ci.json").code == 0
    assert b"not-to-be-stored-3" not in b"".join(path.read_bytes() for path in (program.home / "data").glob("*.db*"))


def test_a_flag_said_twice_holds_its_last_value_and_says_so(program: Program) -> None:
    ran = program.here("run", "--offline", "--permission-mode", "plan", "--permission-mode", "default", "hi")
    assert ran.code == 0 and "--permission-mode is given twice: 'default' holds, and not 'plan'" in ran.err


def test_an_agent_keeps_its_fences_whatever_its_description_says() -> None:
    text = "---\nname: a\ndescription: Use when: x\ndisallowedTools: [BASH, 'Edit(src/**)']\n---\nbody"
    definition, _ = agents.parse(text, Path("a.md"))
    assert definition is not None and definition.description == "Use when: x"
    assert (definition.disallowed_tools, definition.denied) == (("Bash",), ("Edit(src/**)",))


def test_instructions_that_are_links_out_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("PRIVATE")
    project = tmp_path / "project"
    project.mkdir()
    os.symlink(tmp_path / "key", project / "CLAUDE.md")
    files = Instructions(project, tmp_path / "home", tmp_path / "none").at_start()
    assert not any("PRIVATE" in file.text for file in files)
    assert any("left out" in file.text for file in files)


def test_nothing_of_an_untrusted_directory_leads_out_or_hangs(program: Program) -> None:
    """Links out, FIFOs and endless files in every place that is read at the start: one line each, and trust follows links."""
    outside = program.home / "outside"
    (outside / "memory").mkdir(parents=True)
    (outside / "memory/note.md").write_text("# Deployment\nPRIVATE deployment key")
    (outside / "key.md").write_text("PRIVATE")
    (outside / "settings.json").write_text('{"permissions": {"allow": ["Bash(PRIVATE)"]}}')
    (outside / "settings.toml").write_text('disallowed_tools = ["PRIVATE("]')
    here = program.cwd
    for name in (".git", ".claude", ".coordinator"):
        (here / name).mkdir()
    os.symlink(outside / "key.md", here / "CLAUDE.md")
    (here / "AGENTS.md").write_text("See @../home/outside/key.md and @notes.md")
    os.symlink(outside / "key.md", here / "notes.md")
    os.mkfifo(here / "CLAUDE.local.md")
    os.symlink(outside / "settings.json", here / ".claude/settings.json")
    os.symlink(outside / "settings.toml", here / ".coordinator/settings.toml")
    os.symlink(outside / "memory", here / ".coordinator/memory")
    with FakeAPI(text := "done") as api:
        ran = program.here("run", "--no-coordinator", "what is the deployment key", **with_api(program, api))
    assert (ran.code, ran.out) == (0, f"{text}\n"), ran.err
    assert "PRIVATE" not in json.dumps([request.body for request in api.requests])
    left_out = [line for line in ran.err.splitlines() if "left out" in line]
    for name in ("CLAUDE.md", "@../home", "@notes.md", "CLAUDE.local.md", "settings.json", "settings.toml", "memory"):
        assert sum(name in line for line in left_out) >= 1, (name, ran.err)
    (here / ".claude/settings.json").unlink()
    os.mkfifo(here / ".claude/settings.json")
    ran = program.here("run", "--offline", "hi")
    assert ran.code == 2 and "settings.json cannot be read: it is a FIFO" in ran.err
    (here / ".claude/settings.json").unlink()
    (here / ".coordinator/settings.toml").unlink()
    program.here("trust")
    with FakeAPI("done") as api:
        assert program.here("run", "--no-coordinator", "hi", **with_api(program, api)).code == 0
    assert "PRIVATE" in json.dumps([request.body for request in api.requests])


def test_agents_are_found_through_linked_directories_and_a_fifo_is_no_agent(tmp_path: Path) -> None:
    team = tmp_path / "team"
    team.mkdir()
    (team / "a.md").write_text("---\nname: a\ndescription: x\n---\nbody")
    os.symlink(team, team / "ring")
    place = tmp_path / "user/agents"
    place.mkdir(parents=True)
    os.symlink(team, place / "linked")
    os.mkfifo(place / "b.md")
    found = agents.load(tmp_path, trust=NOTHING, user_dir=tmp_path / "user")
    assert "a" in found.by_name
    assert [(problem.source.name, problem.fatal) for problem in found.problems] == [("b.md", True)]


# Every flag of a run: what a session is asked with, what is said for its continuation, and what then holds. `...` stands
# for: nothing is said.
SCHEMA, OTHER = {"type": "object"}, {"type": "array"}
CONTINUED: dict[str, list[tuple[Any, Any, Any]]] = {
    "permission_mode": [("plan", ..., "plan"), ("plan", "acceptEdits", "acceptEdits"), (None, ..., None)],
    "plan_only": [(True, ..., True)],
    "allowed_tools": [(["Bash"], ..., ("Bash",)), (["Bash"], "Edit", ("Edit",))],
    "disallowed_tools": [(["Bash"], ..., ("Bash",)), (["Bash"], "Edit", ("Bash", "Edit"))],
    "add_dirs": [(["/"], ..., (Path("/"),)), (["/"], "/tmp", (Path("/"), Path("/tmp")))],
    "settings": [('{"model":"m"}', ..., '{"model":"m"}')],
    "sandbox": [("required", ..., "required"), ("required", "off", "off")],
    "verify": [("true", ..., "true"), ("true", "false", "false"), (None, "false", "false")],
    "json_schema": [(SCHEMA, ..., SCHEMA), (SCHEMA, json.dumps(OTHER), OTHER)],
    "max_turns": [(3, ..., 3), (3, "9", 9), (None, "9", 9)],
    "timeout": [(60.0, ..., 60.0), (60.0, "2m", 120.0)],
    "max_budget_usd": [(1.0, ..., 1.0), (1.0, "2", 2.0)],
    "token_budget": [(10, ..., 10), (10, "20", 20)],
    "turn_target": [(10, ..., 10), (10, "2k", 2_000), (None, "1m", 1_000_000)],
    "system_prompt": [("s", ..., "s"), ("s", "t", "t")],
    "append_system_prompt": [("s", ..., "s")],
    "model": [("m", ..., "m"), ("m", "n", "n")],
    "worker_model": [("m", ..., "m"), ("m", "n", "n")],
    "fallback_model": [("m", ..., "m")],
    "max_workers": [(3, ..., 3), (3, "4", 4)],
    "backend": [("cluster", ..., "cluster"), ("cluster", "local", "local")],
    "workspace": [("git", ..., "git"), ("git", "shared", "shared")],
    "remote": [("/r.git", ..., "/r.git"), ("/r.git", "/s.git", "/s.git")],
    "use_coordinator": [(False, ..., False)],
    "offline": [(True, ..., True)],
    "wait_approvals": [(True, ..., True)],
    "approval_timeout": [(5.0, ..., 5.0)],
    "plugin_dirs": [(["/"], ..., (Path("/"),)), (["/"], "/tmp", (Path("/"), Path("/tmp")))],
    "mcp_config": [(["/a.json"], ..., ("/a.json",)), (["/a.json"], "/b.json", ("/b.json", "/a.json"))],
    "strict_mcp_config": [(True, ..., True)],
}


def test_every_flag_of_a_run_is_kept_or_is_for_one_run() -> None:
    names = {option.name for option in run.params if isinstance(option, click.Option) and option.expose_value} - {"help"}
    assert names == {*CONTINUED, *continuing.NOT_KEPT} == {*continuing.KEPT, *continuing.NOT_KEPT}
    assert set(RunOptions().stored()) | {"model"} == {*continuing.KEPT, "earlier_settings", "base", "carried"}


@pytest.mark.parametrize("command", ["run", "chat", "resume"])
def test_a_session_goes_on_as_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever command goes on with it, from whatever directory."""
    monkeypatch.setenv("COORDINATOR_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    cli = Context()
    TrustStore(cli.paths.trust).trust(elsewhere)
    subject = {"run": run, "chat": chat, "resume": resume}[command]
    for name, cases in CONTINUED.items():
        option = next((option for option in subject.params if option.name == name), None)
        for asked, said, holds in cases:
            stored = {**RunOptions().stored(), "offline": False, name: asked}
            session = cli.database.write(
                lambda conn, stored=stored, name=name, asked=asked: sessions.create(
                    conn, goal="x", cwd=str(tmp_path), model=asked if name == "model" else "m", options=stored
                )
            )
            flags = [] if said is ... or option is None else [max(option.opts, key=len), said]
            given = ["-r", session.id, *flags] if command != "resume" else [session.id, *flags]
            with subject.make_context(command, given, obj=cli) as ctx:
                options = options_of(
                    ctx,
                    cli,
                    "go on",
                    {"resume": session.id, "continue_last": False, **ctx.params}
                    | ({"resume": session.id} if command == "resume" else {}),
                )
            assert getattr(options, name) == holds, (command, name, asked, said)
            assert not options.trusted  # the session's directory, not the caller's
            assert options.fenced(stored)[name] in (asked, list(holds) if isinstance(holds, tuple) else holds)


def test_what_fenced_a_continuation_fences_the_next() -> None:
    stored = RunOptions(max_turns=5, sandbox="auto").stored()
    again = RunOptions(max_turns=9, permission_mode="plan", sandbox="required", verify="true", timeout=60).fenced(stored)
    assert {name: again[name] for name in ("max_turns", "permission_mode", "sandbox", "verify", "timeout")} == {
        "max_turns": 5, "permission_mode": "plan", "sandbox": "required", "verify": "true", "timeout": 60,
    }  # fmt: skip
    wider = RunOptions(max_turns=9, permission_mode="acceptEdits", sandbox="off", verify="false", timeout=600).fenced(again)
    assert wider == again


@pytest.mark.parametrize("key", ["disallowedTools", "disallowed-tool", "Permission_Mode", "max_turn", "token-budgets"])
def test_a_misspelled_fence_of_a_settings_file_is_refused(tmp_path: Path, key: str) -> None:
    known = frozenset(str(option.name) for option in run.params)
    (tmp_path / ".coordinator").mkdir()
    (tmp_path / ".coordinator/settings.toml").write_text(f'{key} = "x"\nwhatever = 1\n')
    with pytest.raises(Failure, match="there is no setting"):
        config_files.read(tmp_path / "none", tmp_path, known, lambda: NOTHING)
    (tmp_path / ".coordinator/settings.toml").write_text("whatever = 1\n")
    assert "unknown setting 'whatever'" in config_files.read(tmp_path / "none", tmp_path, known, lambda: NOTHING).notes[0]


@pytest.mark.parametrize(
    ("session", "agent", "holds"),
    [("plan", "bypassPermissions", "plan"), ("acceptEdits", "plan", "plan"), ("acceptEdits", None, "acceptEdits"),
     ("dontAsk", "acceptEdits", "dontAsk"), ("bypassPermissions", "default", "default")],
)  # fmt: skip
def test_a_workers_hooks_are_told_the_mode_that_holds(session: str, agent: str | None, holds: str) -> None:
    assert effective_mode(Policy(mode=session).child(mode=agent)) == holds
