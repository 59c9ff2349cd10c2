"""The table of all commands: the one source of `--help`, completion and the README's list."""

from __future__ import annotations

from coordinator.cli.lazy import Entry

TASKS = {
    "list": Entry("List tasks, one a line", "tasks:list_tasks"),
    "show": Entry("Show one task with its prompt and result", "tasks:show"),
    "logs": Entry("Print what tasks said and did; -f follows until they end", "logs:logs"),
    "wait": Entry("Wait until tasks end; exits with the worst of their codes", "wait:wait"),
    "kill": Entry("End tasks and prove that their processes are gone", "kill:kill"),
    "send": Entry("Send a message to a worker", "send:send"),
    "retry": Entry("Run an ended task's worker again, on the same conversation", "send:retry"),
    "tree": Entry("Show a session's tasks below those that asked for them", "timeline:tree"),
    "timeline": Entry("Draw who did what when, a lane for each agent", "timeline:timeline"),
    "diff": Entry("Show what a task changed in its worktree", "worktree:diff"),
    "apply": Entry("Merge a task's worktree branch into this directory", "worktree:apply"),
}
SESSIONS = {
    "list": Entry("List sessions, newest first", "sessions:list_sessions"),
    "show": Entry("Show one session with its tasks", "sessions:show"),
    "resume": Entry("Take a session over where it stopped", "run:resume"),
    "fork": Entry("Copy a session's conversation into a new session", "sessions:fork"),
    "compact": Entry("Summarise a session's conversation, so that it goes on with room", "compact:compact"),
    "remember": Entry("Write what is worth remembering of an ended session into the memory directory", "remember:remember"),
    "compare": Entry("Put two sessions side by side: tasks, cost, time, results", "timeline:compare"),
    "export": Entry("Print a session, transcripts included, as JSON, JSON lines or Markdown", "export:export"),
    "rm": Entry("Remove ended sessions and their files", "sessions:rm"),
}


def _short(name: str, group: str, entry: Entry) -> Entry:
    return Entry(entry.help, entry.target, short_for=f"{group} {name}")


COMMANDS = {
    "run": Entry("Work on one goal, headless or live, until it is done", "run:run"),
    "chat": Entry("Talk with the coordinator; type while workers run", "chat:chat"),
    "tasks": Entry("Look at tasks, steer them, end them", members=TASKS),
    "sessions": Entry("Look at sessions, resume and export them", members=SESSIONS),
    "attach": Entry("Watch a session from another terminal; leaving ends nothing", "attach:attach"),
    "serve": Entry("Serve a page to watch and steer all sessions from a browser", "serve:serve"),
    "inbox": Entry("List the calls that wait for a person", "inbox:inbox"),
    "approve": Entry("Let waiting calls run, from any terminal", "inbox:approve"),
    "deny": Entry("Refuse waiting calls, and say why", "inbox:deny"),
    "agents": Entry(
        "Agent definitions that apply here",
        members={
            "list": Entry("List agent definitions", "agents:list_agents"),
            "validate": Entry("Check agent definition files", "agents:validate"),
        },
    ),
    "skills": Entry(
        "Skills and command files that apply here",
        members={
            "list": Entry("List skills and command files", "skills:list_skills"),
            "show": Entry("Print the text of one skill", "skills:show"),
            "validate": Entry("Check skills and command files", "skills:validate"),
        },
    ),
    "permissions": Entry(
        "Permission rules that apply here",
        members={"test": Entry('Say which rule decides a call such as "Bash(git push)"', "permissions:test")},
    ),
    "mcp": Entry(
        "MCP servers that apply here",
        members={
            "list": Entry("List MCP servers, and whether each may run", "mcp:list_servers"),
            "test": Entry("Start MCP servers and say what each offers", "mcp:test"),
            "approve": Entry("Let one MCP server of an untrusted directory run", "mcp:approve"),
        },
    ),
    "plugins": Entry(
        "Plugins that apply here",
        members={
            "list": Entry("List plugins with what each brings", "plugins:list_plugins"),
            "validate": Entry("Check the plugins in these directories", "plugins:validate"),
        },
    ),
    "node": Entry("Take workers of any session on this machine, until SIGTERM", "node:node"),
    "nodes": Entry(
        "Machines that take workers",
        members={
            "list": Entry("List the machines that take workers", "node:list_nodes"),
            "show": Entry("Show one machine with what runs on it", "node:show"),
            "drain": Entry("Have a machine give back what it runs, and end", "node:drain"),
            "rm": Entry("Forget a machine that is dead", "node:remove"),
        },
    ),
    "mcp-serve": Entry("Serve runs and tasks as MCP tools to another agent", "mcp_serve:mcp_serve"),
    "trust": Entry("Let a directory's own rules, hooks and agents count", "trust:trust"),
    "cost": Entry("What was spent, by session, agent, model or day", "cost:cost"),
    "doctor": Entry("Check this installation", "doctor:doctor"),
    "prune": Entry("Remove old ended sessions and their files", "sessions:prune"),
    "config": Entry(
        "Settings in force",
        members={
            "list": Entry("List settings with their values and where each comes from", "config:list_config"),
            "path": Entry("Print where files lie", "config:path"),
        },
    ),
    "db": Entry(
        "The database",
        members={
            "path": Entry("Print where the database is", "db:path"),
            "upgrade": Entry("Bring the schema up to date", "db:upgrade"),
            "backup": Entry("Copy the database while it is in use", "db:backup"),
            "sql": Entry("Run one read-only SQL statement", "db:sql"),
        },
    ),
    "completion": Entry("Print the completion script of a shell", "completion:completion"),
    "ps": _short("list", "tasks", TASKS["list"]),
    "logs": _short("logs", "tasks", TASKS["logs"]),
    "wait": _short("wait", "tasks", TASKS["wait"]),
    "kill": _short("kill", "tasks", TASKS["kill"]),
    "send": _short("send", "tasks", TASKS["send"]),
    "show": _short("show", "tasks", TASKS["show"]),
    "retry": _short("retry", "tasks", TASKS["retry"]),
    "diff": _short("diff", "tasks", TASKS["diff"]),
    "apply": _short("apply", "tasks", TASKS["apply"]),
    "resume": _short("resume", "sessions", SESSIONS["resume"]),
}
