"""Git, for us: the only place in the product that starts it, and what can be known of a repository without it.

A repository's configuration, attributes and hooks name programs, and whoever wrote the repository wrote these. Rules:

1. Our own git runs none of them, in a trusted repository neither: hooks, fsmonitor, filters, external diff, textconv, merge
   drivers, pagers, aliases, helpers, signing programs, transports (`quiet.py`). What a result lacks by that is said where
   it is shown (`left_out`).
2. The caller's `GIT_*` does not steer it: of these only who commits and whose settings count are kept.
3. Before trust not at all, where reading a file will do (`place.py`).
4. Every call is bounded in time and output, its standard input is closed, and its whole process tree is ended (`run.py`).
"""

from worker_agent.git.place import Place, place_of, read_branch
from worker_agent.git.quiet import NOT_INTO, settings_of
from worker_agent.git.run import NONE, Done, filtered, git_now, left_out, quoted, run_git

__all__ = [
    "NONE", "NOT_INTO", "Done", "Place", "filtered", "git_now", "left_out", "place_of", "quoted", "read_branch",
    "run_git", "settings_of",
]  # fmt: skip
