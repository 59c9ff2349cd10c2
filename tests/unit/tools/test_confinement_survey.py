"""What a confinement finds in directories: what deny rules name, what grants rights, within bounds; and what it makes of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from worker_agent.errors import ConfigError
from worker_agent.tools.base import Confine
from worker_agent.tools.confinement import Confinements, Fence, native, survey
from worker_agent.tools.confinement.plan import Bounds, Plan, Step, plan_for
from worker_agent.tools.confinement.seatbelt import profile
from worker_agent.tools.confinement.survey import Denied, DenyWatch, Rights, RightsWatch, TooMuch, Walk
from worker_agent.tools.rules import Behavior, Places, Rule, Source


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path.resolve() / "work"
    for name in (
        "secrets/k",
        "app/[id]/page.tsx",
        "app/i/page.tsx",
        "sub/.env",
        ".env",
        "deep/er/a.pem",
        "plain",
        "sub/secrets/k",
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")
    (work / "link").symlink_to("secrets")
    return work


def denied(work: Path, *texts: str, twins: tuple[Path, ...] = ()) -> Denied:
    rules = tuple(Rule.parse(text, Source("test", base=work), Behavior.DENY) for text in texts)
    return DenyWatch([Fence(rules, Places(work, work.parent / "home", (work,), twins))]).look()


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("Read(./secrets/**)", {"secrets"}), ("Read(secrets/**)", {"secrets", "sub/secrets"}), ("Read(.env)", {".env", "sub/.env"}),
        ("Read(./.env)", {".env"}), ("Read(**/*.pem)", {"deep/er/a.pem"}), ("Read(/plain)", {"plain"}),
        ("Read(link)", {"secrets"}), ("Read(./deep/*/a.pem)", {"deep/er/a.pem"}), ("Read(./nowhere/**)", set()),
        ("Read(/app/[id]/page.tsx)", {"app/[id]/page.tsx", "app/i/page.tsx"}),
    ],
)  # fmt: skip
def test_a_deny_rule_names_the_paths_that_are_there(work: Path, rule: str, names: set[str]) -> None:
    assert denied(work, rule) == Denied(frozenset(str(work / name) for name in names))


def test_rules_that_hang_on_the_root_on_edits_or_on_a_whole_tool(work: Path) -> None:
    assert denied(work, f"Read(/{work}/plain)").hidden == {str(work / "plain")}
    assert denied(work, "Edit(/plain)", "Read", "Bash(rm *)") == Denied(frozenset(), frozenset({str(work / "plain")}))


def test_a_copy_of_the_project_is_fenced_as_the_project(work: Path) -> None:
    twin = work.parent / "twin"
    (twin / "secrets").mkdir(parents=True)
    assert str(twin / "secrets") in denied(work, "Read(./secrets/**)", twins=(twin,)).hidden


def test_what_appears_is_found_and_what_is_unchanged_is_not_read_again(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(str(work), lambda path, name, is_directory: name == ".env")
    for path in (work, *work.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            os.utime(path, (time.time() - 60, time.time() - 60))
    assert len(walk.look()) == 2
    read: list[str] = []
    really = os.scandir

    def noted(path: str) -> object:
        read.append(path)
        return really(path)

    monkeypatch.setattr(os, "scandir", noted)
    (work / "deep/er/.env").write_text("x")
    assert len(walk.look()) == 3 and read == [str(work / "deep/er")]


def test_beyond_its_bounds_nothing_is_promised(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "MAX_ENTRIES", 3)
    with pytest.raises(TooMuch, match="holds more than 3 files"):
        denied(work, "Read(.env)")
    rules = (Rule.parse("Read(.env)", Source("test", base=work), Behavior.DENY),)
    fence = Fence(rules, Places(work, work.parent, (work,)))
    confinements = Confinements(means=native.Native(7, namespaces=True), home=work.parent, aside=work.parent / "aside")
    confinement = confinements.of(work, (fence,))
    assert not confinement.holds(Confine.GUARD) and "more than 3 files" in (confinement.why_not or "")


def test_places_that_grant_rights_are_kept_and_data_beside_them_is_not(work: Path) -> None:
    for name in (".git/hooks/x", ".git/config", ".git/objects/x", ".coordinator/settings.toml", ".coordinator/memory/n.md",
                 ".vscode/tasks.json", "node_modules/p/.vscode/x", "bare/HEAD", "bare/objects/x", "bare/refs/x", "bare/config"):  # fmt: skip
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")
    (work / ".envrc").symlink_to("plain")
    rights = RightsWatch([work], work.parent / "home").look()
    names = {place.path.removeprefix(f"{work}/") for place in rights.frozen}
    assert names == {".git/hooks", ".git/config", ".coordinator/settings.toml", ".vscode", "bare/config", ".envrc"}
    assert {place.path.removeprefix(f"{work}/") for place in rights.pinned} == {".git", ".coordinator"}
    plan = plan_for(Bounds(directory=work, home=work.parent), Confine.WORKSPACE, work, rights, Denied())
    assert str(work / "plain") in plan.paths("freeze")  # a link leads there, and a link itself cannot be kept


def test_what_a_deny_rule_names_is_shown_by_nothing_again(work: Path) -> None:
    bounds = Bounds(directory=work / "secrets", home=work.parent, private=(work,))
    plan = plan_for(bounds, Confine.WORKSPACE, work, Rights(), Denied(frozenset({str(work / "secrets")})))
    mine = [step for step in plan.steps if step.path.startswith(str(work))]
    assert [step.how for step in mine] == ["hide", "write", "hide"]


def test_a_profile_for_macos_takes_away_below_what_it_gives() -> None:
    steps = (Step("write", "/p"), Step("freeze", "/p/frozen"), Step("hide", '/p/se"cret'))
    lines = profile(
        Plan(level=Confine.WORKSPACE, cwd="/p", steps=steps, writable=("/p",), network=False), "/tmp/own"
    ).splitlines()
    assert lines[:2] == ["(version 1)", "(allow default)"] and "(deny network*)" in lines and "(deny signal)" in lines
    order = ["(deny file-write*)", '(allow file-read* file-write* (subpath "/p"))', '(deny file-write* (subpath "/p/frozen"))']
    assert [line for line in lines if line in order] == order
    assert lines[-1] == '(deny file-read* file-write* (subpath "/p/se\\"cret"))'
    assert any("hooks" in line and line.startswith("(deny file-write* (regex") for line in lines)
    guard = profile(Plan(level=Confine.GUARD, cwd="/p", steps=steps[1:], writable=(), network=True), None)
    assert "network" not in guard and "signal" not in guard and '(deny file-write* (subpath "/p/frozen"))' in guard


def test_off_looks_for_nothing_and_auto_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from worker_agent.tools.confinement import choose

    why = "bubblewrap (bwrap) is not installed, and this kernel has no Landlock"
    monkeypatch.setitem(choose.__globals__, "found", lambda: (None, why))
    assert choose("off").means is None and choose("off").notice is None
    assert f"no sandbox: {why}; shell commands run unconfined" in (choose("auto").notice or "")
    with pytest.raises(ConfigError, match="--sandbox required: bubblewrap"):
        choose("required")
    monkeypatch.setitem(choose.__globals__, "found", lambda: (native.Native(5, namespaces=True), ""))
    with pytest.raises(ConfigError, match="signals are held from version 6"):
        choose("required")
