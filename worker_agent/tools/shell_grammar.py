"""The shell grammar as others use it: what a command line would run, and whether it only reads.

`parse(command)` gives the simple commands or says why it cannot; `read_only(command)` looks them up in the fixed table.
The parts: `shell_words` (values), `shell_parser` (the walk over the syntax tree), `shell_carriers` (commands that run
others), `shell_readonly` (the table).
"""

from worker_agent.tools.shell_parser import Unparsable, parse, parse_cached
from worker_agent.tools.shell_readonly import read_only
from worker_agent.tools.shell_words import SimpleCommand

__all__ = ["SimpleCommand", "Unparsable", "parse", "parse_cached", "read_only"]
