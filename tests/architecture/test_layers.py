"""Who may import whom: `coordinator → worker_agent, tasks`; the others nothing of ours; inside `worker_agent` only downwards."""

from __future__ import annotations

from functools import cache

from tests.architecture.source import PACKAGES, imports, modules

ALLOWED = {
    "coordinator": {"coordinator", "worker_agent", "tasks"},
    "worker_agent": {"worker_agent"},
    "tasks": {"tasks", "migrations"},  # the store runs its own migrations
    "migrations": {"migrations"},
}
# Height inside worker_agent; equal heights are siblings that do not know each other.
HEIGHTS = {
    "session": 6, "loop": 5, "tools": 4,
    "api": 3, "context": 3, "hooks": 3, "attachments": 3, "memory": 3, "memory_notes": 3, "skills": 3, "mcp": 3,
    "process": 2, "git": 2, "process_tree": 1, "concealment": 1,
    "causes": 0, "words": 0, "disk": 0, "redaction": 0, "errors": 0, "config": 0, "messages": 0, "events": 0, "prompts": 0, "tool_facts": 0,
    "front_matter": 0, "structs": 0,
}  # fmt: skip


@cache
def ours(name: str) -> list[str]:
    return sorted({target for target in imports(name) if target.split(".")[0] in PACKAGES})


def inside_worker_agent() -> list[str]:
    return [name for name in modules() if name.startswith("worker_agent.")]


def test_a_package_imports_only_what_stands_below_it() -> None:
    def allowed(name: str) -> set[str]:
        return ALLOWED[name.split(".")[0]] | ({"tasks"} if name == "migrations.env" else set())

    assert [(name, target) for name in modules() for target in ours(name) if target.split(".")[0] not in allowed(name)] == []


def test_a_revision_imports_nothing_of_ours_and_the_environment_only_the_models() -> None:
    migrations = {name: set(ours(name)) for name in modules() if name.startswith("migrations.")}
    assert migrations.pop("migrations.env") <= {"tasks", "tasks.models"}
    assert {name: targets for name, targets in migrations.items() if targets} == {}


def test_inside_worker_agent_imports_go_downwards_and_siblings_do_not_know_each_other() -> None:
    wrong = []
    for name in inside_worker_agent():
        part = name.split(".")[1]
        for target in ours(name):
            other = target.split(".")[1] if "." in target else None
            if other is None or other == part:
                continue
            below = HEIGHTS[other] < HEIGHTS[part] or HEIGHTS[other] == HEIGHTS[part] == 0
            if not below:
                wrong.append((name, target))
    assert wrong == []


def test_every_part_of_worker_agent_has_a_height() -> None:
    assert {name.split(".")[1] for name in inside_worker_agent()} - HEIGHTS.keys() == set()


def test_no_imports_go_round_in_a_circle() -> None:
    graph = {
        name: {t for t in ours(name) if t in modules() and t != name and not name.startswith(t + ".")} for name in modules()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*path, name))
            done.add(name)

    for name in modules():
        visit(name, ())
