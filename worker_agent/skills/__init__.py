"""Skills: `<dir>/<name>/SKILL.md`. `skill` reads what a file says of itself, `index` finds and lists them and turns one into
a prompt when it is used, `placeholders` fills in its arguments."""

from worker_agent.skills.index import HEAD_BYTES, Runner, SkillIndex, files_of, read
from worker_agent.skills.skill import Origin, Problem, Skill, breach, parse

__all__ = ["HEAD_BYTES", "Origin", "Problem", "Runner", "Skill", "SkillIndex", "breach", "files_of", "parse", "read"]
