"""How a session went: its tree, its lanes, and another session beside it; from the store alone."""

from __future__ import annotations

from coordinator.views.timeline import MODEL, QUEUED, TOOL, WAITING, Segment, _cut
from tests.cli.program import Program


def test_tree_timeline_and_comparison_of_a_real_run(program: Program) -> None:
    (program.cwd / "limiter.py").write_text("def limiter():\n    return 1  # TODO: count retries\n")
    assert program.here("run", "--offline", "where is the limiter").code == 0
    (session,) = program.here("sessions", "list", "--json").json
    tasks = {task["id"]: task for task in program.here("ps", "--all", "--json").json}
    placed = program.here("tasks", "tree", "--json").json
    drawn = program.here("tasks", "tree").out
    lanes = program.here("tasks", "timeline", session["id"], "--json").json
    picture = program.here("tasks", "timeline").out.splitlines()
    fork = program.here("sessions", "fork", session["id"]).out.strip()
    compared = program.here("sessions", "compare", session["id"], fork, "--json").json
    side_by_side = program.here("sessions", "compare", session["id"], fork).out
    nothing = program.here("tasks", "timeline", "nowhere")

    assert {row["id"] for row in placed} == set(tasks) and all(row["depth"] == 1 for row in placed)
    assert all(id in drawn for id in tasks)
    assert [lane["id"] for lane in lanes] == [session["id"], *(row["id"] for row in placed)]
    for lane in lanes:
        ends = [at for segment in lane["segments"] for at in (segment["start"], segment["end"])]
        assert ends == sorted(ends), "segments stand in order and do not overlap"
        assert {segment["kind"] for segment in lane["segments"]} <= {"queued", "model", "tool", "waiting", "idle"}
        if lane["id"] in tasks:
            assert lane["segments"] and lane["status"] == "completed"
            assert abs(lane["segments"][-1]["end"] - lane["end"]) < 0.5
    assert len(picture) == len(lanes) + 2 and "█" in "".join(picture) and "▒" in "".join(picture)
    assert [one["id"] for one in compared["sessions"]] == [session["id"], fork]
    assert [pair["b"] for pair in compared["tasks"]] == [None] * len(tasks)
    assert compared["sessions"][0]["tool_uses"] == sum(task["tool_uses"] for task in tasks.values())
    assert f"--- {session['id']}" in side_by_side
    assert nothing.code == 3


def test_the_time_a_person_was_waited_for_is_cut_out_of_the_tools_time() -> None:
    tool = Segment(TOOL, 10.0, 20.0, "Bash, Edit")
    waits = [Segment(WAITING, 12.0, 14.0, "Bash"), Segment(WAITING, 13.0, 15.0, "Edit"), Segment(WAITING, 18.0, 30.0, "Bash")]
    assert [(one.kind, one.start, one.end) for one in _cut(tool, waits)] == [
        (TOOL, 10.0, 12.0), (WAITING, 12.0, 14.0), (WAITING, 14.0, 15.0), (TOOL, 15.0, 18.0), (WAITING, 18.0, 20.0),
    ]  # fmt: skip
    assert {QUEUED, MODEL} & {one.kind for one in _cut(tool, [])} == set()
