"""The syntax tree of a command, and where it is known to differ from what bash reads.

The grammar is good, not perfect. `misreading` names the places where it took something else than bash would;
`plainer` rewrites two forms that it does not know. Nothing here knows commands.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

from worker_agent.tools.shell_words import Word, expand_braces

_TIGHT = frozenset({"concatenation", "simple_expansion", "variable_assignment", "translated_string"})
_BLANK = re.compile(rb"(?<!\\)(?:\\\\)*[ \t\n]")


def strange_character(command: str) -> str | None:
    for char in command:
        if is_strange(char):
            return f"the command holds the character U+{ord(char):04X}, which shells and people read differently"
    return None


def is_strange(char: str) -> bool:
    if char in " \n\t":
        return False
    return char == "\x7f" or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")


@lru_cache(maxsize=1)
def _language() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


# The grammar's scanner reads beyond its tables for characters outside ASCII, and has crashed the process. A dot is what they
# are to bash: a part of a word, never of a name. Same length, so all offsets hold for the text itself.
_ASCII = bytes(byte if byte < 0x80 else ord(".") for byte in range(256))


def tree(source: bytes) -> Any:
    """The syntax tree of `source`; its offsets are those of `source`, its own text is not."""
    import tree_sitter

    return tree_sitter.Parser(_language()).parse(source.translate(_ASCII))


def misreading(root: Any, source: bytes) -> str | None:
    """Why this tree cannot be trusted; None if it can."""
    if root.has_error:
        return "the command does not parse"
    for start, end in gaps(root, source):
        # A lone `-` before a here-document is lost by the grammar and means nothing to a rule.
        if source[start:end].replace(b"\\\n", b"").strip(b" \t\n") not in (b"", b"-"):
            return "a part of the command was not understood"
    if any(_holds_blank(node, source) for node in all_nodes(root)):
        return "a word with a blank in it"  # bash begins a new word, or a command, there
    return None


def _holds_blank(node: Any, source: bytes) -> bool:
    if node.type in _TIGHT and any(a.end_byte != b.start_byte for a, b in pairwise(node.children)):
        return True
    is_word = node.type in ("word", "number", "variable_name")
    return is_word and bool(_BLANK.search(source, node.start_byte, node.end_byte)) and not _in_expansion(node)


# Two things bash reads and the grammar does not: a group under `time` or `coproc`, and braces where a command begins.
_START = rb"(^|[;&|\n(){`!]|\b(?:then|do|else|elif|if|while|until)\b)([ \t]*)"
TIMED_GROUP = re.compile(
    _START + rb"(?:time(?:[ \t]+-p)?|coproc(?:[ \t]+\w+)?)[ \t]+(?=[{(!]|\[\[|(?:if|while|for|until|case|select)\b)"
)
_LEADING_BRACES = re.compile(_START + rb"(\{[^\s{}()'\"\\$`;&|<>]*,[^\s{}()'\"\\$`;&|<>]*\})(?=[\s;&|)]|$)")


def plainer(source: bytes) -> bytes:
    """The same commands in words that the grammar understands. May touch a quoted text: that only makes rules stricter."""
    source = TIMED_GROUP.sub(rb"\1\2", source)

    def expanded(match: re.Match[bytes]) -> bytes:
        words = expand_braces(Word(match[3].decode("utf-8", "replace"), ""))
        return match[1] + match[2] + " ".join(word.raw for word in words).encode()

    return _LEADING_BRACES.sub(expanded, source)


def gaps(root: Any, source: bytes) -> Iterator[tuple[int, int]]:
    """Stretches that no leaf of the tree covers. Strings and here-documents are leaves: they are read by hand."""
    end = 0
    for node in leaves(root):
        if node.start_byte > end:
            yield end, node.start_byte
        end = max(end, node.end_byte)
    if end < len(source):
        yield end, len(source)


def leaves(node: Any) -> Iterator[Any]:
    stack = [node]
    while stack:
        current = stack.pop()
        if current.child_count == 0 or current.type in ("string", "heredoc_body", "translated_string"):
            yield current
        else:
            stack.extend(reversed(current.children))


def _in_expansion(node: Any) -> bool:
    """`${x/a b/c}`: there a blank is a part of the word."""
    parent = node.parent
    while parent is not None and parent.type in ("concatenation", "regex"):
        parent = parent.parent
    return parent is not None and parent.type == "expansion"


def all_nodes(root: Any) -> Iterator[Any]:
    stack = [root]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(current.children)


def descendants(node: Any) -> Iterator[Any]:
    """Below `node`, but not into substitutions, which are commands of their own."""
    stack = list(node.children)
    while stack:
        current = stack.pop()
        yield current
        if current.type not in ("command_substitution", "process_substitution"):
            stack.extend(current.children)
