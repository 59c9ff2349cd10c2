"""What the text of a source file says of its own structure: which definition encloses a line, whether a line is a comment.

1. Python is parsed (`ast`, `tokenize`), shell is parsed (tree-sitter).
2. Languages with braces are scanned: comments, strings and regular expressions are blanked, braces paired, and the head
   before a brace decides whether it begins a definition. A file whose braces or quotes do not come out even was misread:
   then nothing is said of it.
3. Of any other language nothing is said. A wrong answer is worse than none.
"""

from __future__ import annotations

import ast
import bisect
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePosixPath

LANGUAGES = {
    "Python": ("py", "pyi"), "JavaScript": ("js", "mjs", "cjs", "jsx"), "TypeScript": ("ts", "tsx", "mts"), "Go": ("go",),
    "Rust": ("rs",), "C": ("c", "h"), "C++": ("cc", "cpp", "cxx", "hpp"), "Java": ("java",), "Ruby": ("rb",),
    "Shell": ("sh", "bash"), "HTML and CSS": ("html", "htm", "css"), "Text": ("md", "rst", "txt"),
}  # fmt: skip
_BY_EXTENSION = {extension: language for language, extensions in LANGUAGES.items() for extension in extensions}
_BRACES = frozenset({"JavaScript", "TypeScript", "Go", "Rust", "C", "C++", "Java"})

_SCRIPT = (
    r"^\s*(?:export\s+)?(?:default\s+)?(?:declare\s+)?(?:abstract\s+)?(?:(?:async\s+)?function\b\s*\*?\s*\w+\s*[(<]|(?:class|interface|enum)\s+\w+"
    r"|(?:const|let|var)\s+\w+\s*=\s*(?:async\s+)?(?:function\b|\([^()]*\)\s*=>|\w+\s*=>)|type\s+\w+(?:<[^=]*>)?\s*=)"
)
_C = (
    r"^(?:(?:typedef\s+)?(?:struct|union|enum|class|namespace)\s+\w+[^;=()]*\{?\s*$"
    r"|(?:[A-Za-z_][\w:<>,*&]*\s+)+[*&]*[\w:~]+\s*\([^;]*(?:\)[\w\s]*\{?)?\s*$)"
)
# Lines that begin a definition, for ripgrep and for `re`.
DEFINITIONS = {
    "Python": r"^\s*(?:(?:async\s+)?def\s+\w+\s*[(\[]|class\s+\w+\s*[(:\[])",
    "JavaScript": _SCRIPT,
    "TypeScript": _SCRIPT,
    "Go": r"^(?:func\s+(?:\([^)]*\)\s*)?\w+\s*[(\[]|type\s+\w+(?:\[[^\]]*\])?\s+(?:struct|interface|func|map|\[|\w+\s*$))",
    "Rust": r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:(?:async|const|unsafe|default|extern(?:\s+\"[^\"]*\")?)\s+)*"
    r"(?:(?:fn|struct|enum|trait|union|mod)\s+\w+|macro_rules!\s*\w+|impl\b[^;=]*\{\s*$)",
    "C": _C,
    "C++": _C,
    "Java": r"^\s*(?:(?:public|protected|private|static|final|abstract|sealed|synchronized|default)\s+)*"
    r"(?:(?:class|interface|enum|record|@interface)\s+\w+|(?:<[^>]*>\s*)?[A-Z][\w<>\[\],.?]*\s+\w+\s*\([^;=]*\)[^;=]*\{\s*$"
    r"|(?:void|int|long|boolean|double|float|char|byte|short)(?:\[\])*\s+\w+\s*\([^;=]*\)[^;=]*\{\s*$)",
    "Ruby": r"^\s*(?:def\s+[\w.?!=]+|class\s+[A-Z]\w*|module\s+[A-Z]\w*)",
    "Shell": r"^\s*(?:function\s+[\w:.-]+\s*(?:\(\s*\))?|[\w:.-]+\s*\(\s*\))\s*\{?\s*$",
}


def language_of(path: str) -> str | None:
    return _BY_EXTENSION.get(PurePosixPath(path).suffix.lower().removeprefix("."))


def defines(path: str, text: str) -> bool:
    """Whether `text`, a line of `path`, begins a definition as far as one line can tell."""
    pattern = DEFINITIONS.get(language_of(path) or "")
    return pattern is not None and re.match(pattern, text) is not None


def can_be_parsed(path: str) -> bool:
    """Whether `enclosing` knows the language."""
    language = language_of(path)
    return language in ("Python", "Shell") or language in _BRACES


def enclosing(path: str, text: str, line: int) -> int | None:
    """The line (from 1) where the innermost definition around `line` begins; None if there is none, or it is not known."""
    around = [first for first, last in _spans(language_of(path) or "", text) if first < line <= last]
    return max(around, default=None)


def is_comment(path: str, text: str, line: int) -> bool | None:
    """Whether a comment or the text of a docstring stands on `line` of a Python file; None for other files."""
    comments = _comments(text) if language_of(path) == "Python" else None
    return None if comments is None else line in comments


@lru_cache(maxsize=32)
def _spans(language: str, text: str) -> tuple[tuple[int, int], ...]:
    """(first line, last line) of each definition."""
    if language == "Python":
        return tuple(_python_spans(text))
    if language == "Shell":
        return tuple(_shell_spans(text))
    return tuple(_brace_spans(text, language)) if language in _BRACES else ()


def _python_tree(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _python_spans(text: str) -> Iterator[tuple[int, int]]:
    tree = _python_tree(text)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.end_lineno or node.lineno


@lru_cache(maxsize=32)
def _comments(text: str) -> frozenset[int] | None:
    tree = _python_tree(text)
    if tree is None:
        return None
    try:
        tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError):
        return None
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
    ]
    lines = {line for part in docstrings for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)}
    return frozenset(lines | {token.start[0] for token in tokens})


def _shell_spans(text: str) -> Iterator[tuple[int, int]]:
    from worker_agent.tools import shell_tree

    waiting = [shell_tree.tree(text.encode("utf-8", "replace")).root_node]
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.type == "function_definition" and not node.has_error:
            yield node.start_point[0] + 1, node.end_point[0] + 1


# ── languages with braces ────────────────────────────────────────────────────────────────────────────────────────────

_CHARACTER = r"'(?:\\[^']+|[^'\\\n])'"
_STRING = r'"(?:\\.|[^"\\\n])*"'
_QUOTED = {
    "Go": rf"{_STRING}|{_CHARACTER}|`[^`]*`",
    "Rust": rf'b?r(#+)"(?s:.)*?"\1|"(?:\\(?s:.)|[^"\\])*"|{_CHARACTER}|\'[A-Za-z_]\w*',
    "C": rf"{_STRING}|{_CHARACTER}",
    "C++": rf"{_STRING}|{_CHARACTER}",
    "Java": rf'"""(?s:.)*?"""|{_STRING}|{_CHARACTER}',
}
_QUOTED_IN_SCRIPTS = (
    rf"{_STRING}|'(?:\\.|[^'\\\n])*'|`(?:\\(?s:.)|[^`\\])*`"
    r"|(?:(?<=[=(,:;!&|?{}\[])|(?<=\breturn))[ \t]*/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/\w*"
)
_ATTRIBUTES = re.compile(r"\s*(?:(?:#!?\[[^\]]*\]|@\w+(?:\.\w+)*(?:\([^()]*\))?)\s*)*")
_GOES_ON = re.compile(r"\s*(?:extends|implements|throws|where|noexcept)\b|\s*(?:->|=>|:(?!:))|\s*$")  # a head's later line
_HEAD_LINES = 30
_HEAD = re.compile(
    r"(?:(?:export|default|declare|public|private|protected|internal|static|final|abstract|sealed|async|const|unsafe|"
    r"extern|inline|pub(?:\([^)]*\))?|typedef|template\s*<[^{}]*>|override|virtual)\s+)*"
    r"(?:(?:class|interface|struct|enum|union|trait|impl|mod|namespace|record|fn|func|function)\b|type\s+\w+[^=]*\b(?:struct|interface)"
    r"|(?:const|let|var)\s+\w+[^=]*=\s*(?:async\s*)?(?:function\b.*|(?:\([^{}]*\)|\w+)[^{}]*=>)\s*$"
    r"|(?!(?:if|for|while|switch|catch|else|do|try|return|with|new|match|loop|synchronized|foreach|select|defer|go|throw|await|yield|case|"
    r"finally|typeof|delete|in|of|assert)\b)(?:[\w:<>,*&\[\]~.?]+[\s*&]+)*[\w:~$#]+\s*(?:<[^{}()]*>\s*)?\([^{}]*\)[^{}=]*$)",
    re.DOTALL,
)


def _brace_spans(text: str, language: str) -> list[tuple[int, int]]:
    code = _blanked(text, language)
    if code is None:
        return []
    starts = [0, *(match.end() for match in re.finditer("\n", code))]
    spans: list[tuple[int, int]] = []
    heads: list[int | None] = []  # the line where the definition of each open brace begins
    since = 0
    for mark in re.finditer(r"[{};]", code):
        if mark[0] == "{":
            heads.append(_head_line(code, since, mark.start(), starts))
        elif mark[0] == "}":
            if not heads:
                return []
            if (first := heads.pop()) is not None:
                spans.append((first, bisect.bisect_right(starts, mark.start())))
        since = mark.end()
    return spans if not heads else []


def _blanked(text: str, language: str) -> str | None:
    """`text` with blanks for what is no code, at the same places; None if a quote is left over."""
    quoted = _QUOTED.get(language, _QUOTED_IN_SCRIPTS)
    code = re.sub(rf"//[^\n]*|/\*(?s:.)*?\*/|{quoted}", lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return None if re.search(r"[\"'`]", code) else code


def _head_line(code: str, start: int, end: int, starts: list[int]) -> int | None:
    """The line of the definition whose head ends before `end`; None if it is no definition's. Goes up from the brace, line by
    line, to where the parentheses come out even: not every language ends a statement with a mark."""
    last = bisect.bisect_right(starts, end)
    for line in range(last, max(last - _HEAD_LINES, 0), -1):
        begin = max(starts[line - 1], start)
        head = code[begin:end]
        if head.count("(") == head.count(")") and not _GOES_ON.match(code[begin : starts[line] if line < last else end]):
            attributes = _ATTRIBUTES.match(code, begin, end)
            return line if _HEAD.match(code, attributes.end() if attributes else begin, end) else None
        if begin == start:
            return None
    return None
