"""News between turns, never waited for: `news` tells them in order, `watch` sees which files changed and `changes` in which
lines, `prefetch` is work in the background."""

from worker_agent.attachments.news import Attachments

__all__ = ["Attachments"]
