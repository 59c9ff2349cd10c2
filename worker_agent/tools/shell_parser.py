"""What a shell command would run, by a real grammar (tree-sitter-bash), for the permission rules.

Theory. A command line is taken apart into *simple commands*: every part of a compound, every body, every substitution,
also inside double quotes, here-documents, arithmetic and assignments. A word whose value only the shell can know holds
`WILD`, so that a rule can be asked both "does it match?" and "could it match?". Three things are never guessed:

1. What the grammar did not understand, or where it is known to see something else than bash, is `Unparsable`; the
   commands that were found all the same are kept, since a denied one among them denies the whole.
2. A command that another one carries (`bash -c`, `eval`, `env`, `find -exec`, `git -c alias.x=!…`) is listed too, as
   `carried`: a deny or ask rule sees it, an allow rule for it is not enough.
3. A part that hides what it runs (`$X p`, `eval "$X"`, `curl … | sh`) is `opaque`.

Nothing here knows rules, modes or the file system; `permissions.py` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct, field

from worker_agent.structs import replace
from worker_agent.tools.rules import WILD
from worker_agent.tools.shell_carriers import Script, carried
from worker_agent.tools.shell_tree import (
    TIMED_GROUP,
    descendants,
    gaps,
    is_strange,
    misreading,
    plainer,
    strange_character,
    tree,
)  # fmt: skip
from worker_agent.tools.shell_words import (
    Assignment,
    Redirect,
    SimpleCommand,
    Word,
    decode_ansi_c,
    expand_braces,
    open_bracket,
    unquote_word,
)  # fmt: skip

MAX_COMMAND = 10_000  # characters
MAX_DEPTH = 120  # of the syntax tree
MAX_CARRIED = 5  # shells inside shells
MAX_COMMANDS = 2_000


class Unparsable(Struct, frozen=True):
    """`commands` are those that were understood all the same."""

    reason: str
    commands: tuple[SimpleCommand, ...] = ()


@lru_cache(maxsize=256)
def parse_cached(command: str) -> tuple[SimpleCommand, ...] | Unparsable:
    parsed = parse(command)
    return parsed if isinstance(parsed, Unparsable) else tuple(parsed)


def parse(command: str) -> list[SimpleCommand] | Unparsable:
    """Every simple command that `bash -c command` could run, in order of appearance. Never raises."""
    return _parse(command, 0)


def _parse(command: str, level: int) -> list[SimpleCommand] | Unparsable:
    if len(command) > MAX_COMMAND:
        return Unparsable(f"the command has more than {MAX_COMMAND} characters", tuple(_found(command[:MAX_COMMAND], level)))
    if problem := strange_character(command):
        return Unparsable(problem, tuple(_found(command, level)))
    return _Reader.read(command, level)


def _found(command: str, level: int) -> Sequence[SimpleCommand]:
    """The commands in a text that is refused anyway: strange characters are taken as spaces."""
    cleaned = "".join(" " if is_strange(char) else char for char in command)
    parsed = _Reader.read(cleaned, level)
    return parsed.commands if isinstance(parsed, Unparsable) else parsed


_KNOWN = frozenset(
    """program list pipeline subshell compound_statement redirected_statement if_statement elif_clause else_clause
    while_statement for_statement c_style_for_statement case_statement case_item do_group function_definition
    negated_command command command_name declaration_command unset_command test_command variable_assignment
    variable_assignments variable_name special_variable_name subscript array word number string string_content raw_string
    ansi_c_string translated_string concatenation simple_expansion expansion command_substitution process_substitution
    arithmetic_expansion binary_expression unary_expression postfix_expression ternary_expression parenthesized_expression
    test_operator extglob_pattern regex brace_expression file_redirect herestring_redirect heredoc_redirect heredoc_start
    heredoc_body heredoc_content heredoc_end file_descriptor comment""".split()
)
_WORDS = frozenset(
    """word number string raw_string ansi_c_string translated_string concatenation simple_expansion expansion
    command_substitution process_substitution arithmetic_expansion brace_expression variable_name special_variable_name
    subscript test_operator regex extglob_pattern""".split()
)
_SUBSTITUTIONS = frozenset({"command_substitution", "expansion", "arithmetic_expansion"})
_RESERVED = frozenset(
    "{ } ( ) (( [[ ! if then elif else fi for select while until do done case esac in function time coproc".split()
)
_SPLICED = re.compile(r"([\w./:=@%+,-]*)\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))([./:=@%+,-][\w./:=@%+,-]*)?", re.ASCII)
# Keywords of the grammar where bash has builtins.
DECLARERS = frozenset({"export", "declare", "typeset", "readonly", "local", "unset", "unsetenv"})
# They may give a variable a value that no assignment shows.
_SETTERS = DECLARERS | frozenset("read readarray mapfile printf getopts let eval source . trap select wait".split())
_ARITHMETIC_TESTS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_NUMERIC = re.compile(r"[+-]?[0-9A-Za-z_]*")


class _Scope(Struct):
    """What the walk knows of where it stands."""

    piped: bool = False
    repeats: bool = False
    redirects: tuple[Redirect, ...] = ()
    documents: tuple[str, ...] = ()


class _Reader(Struct):
    """One walk over one syntax tree."""

    source: bytes
    level: int
    commands: list[SimpleCommand] = field(default_factory=list)
    problem: str | None = None
    computed: set[str] = field(default_factory=set)  # variables that arithmetic evaluates
    assigned: dict[str, bool] = field(default_factory=dict)  # variable → every value is a plain number
    values: dict[str, list[Word] | None] = field(default_factory=dict)  # None: a value nobody knows
    functions: set[str] = field(default_factory=set)  # defined for certain so far

    @classmethod
    def read(cls, command: str, level: int) -> list[SimpleCommand] | Unparsable:
        reader = cls(command.encode("utf-8", "replace"), level)
        root = reader._joined_root()
        if root.has_error or TIMED_GROUP.search(reader.source):
            reader.source = plainer(reader.source)
            root = reader._joined_root()
        if problem := misreading(root, reader.source):
            reader._fail(problem)
        reader._visit(root, _Scope(), 0)
        reader._check_arithmetic()
        if any(command.opaque or command.base_name in _SETTERS for command in reader.commands):
            reader.values.clear()
        commands = [reader._with_values(c) for c in reader.commands]
        commands += [carried for c in commands for carried in reader._carried(c)]
        if reader.problem:
            return Unparsable(reader.problem, tuple(commands))
        return commands

    # the text itself

    def _joined_root(self) -> Any:
        """A backslash-newline between two tokens joins them for bash, not for the grammar: take it out and parse again."""
        for _ in range(50):
            root = tree(self.source).root_node
            joints = [s for s, e in gaps(root, self.source) if self.source[s:e] == b"\\\n"]
            if not joints:
                return root
            for start in reversed(joints):
                self.source = self.source[:start] + self.source[start + 2 :]
        self._fail("too many line continuations")
        return tree(self.source).root_node

    def _fail(self, reason: str) -> None:
        self.problem = self.problem or reason

    def _text(self, node: Any) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    # the walk

    def _visit(self, node: Any, scope: _Scope, depth: int) -> None:
        if depth > MAX_DEPTH or len(self.commands) > MAX_COMMANDS:
            self._fail("the command is nested too deeply")
            return
        if node.is_named and node.type not in _KNOWN and not node.is_error:
            self._fail(f"the grammar's {node.type} is not understood")
        handler = getattr(self, f"_visit_{node.type}", None) if node.is_named else None
        if handler:
            handler(node, scope, depth + 1)
        else:
            self._children(node, scope, depth + 1)

    def _children(self, node: Any, scope: _Scope, depth: int) -> None:
        for child in node.children:
            self._visit(child, scope, depth)

    def _visit_pipeline(self, node: Any, scope: _Scope, depth: int) -> None:
        piped = scope.piped
        for child in node.children:
            self._visit(child, replace(scope, piped=piped), depth)
            piped = piped or child.type in ("|", "|&")

    def _visit_redirected_statement(self, node: Any, scope: _Scope, depth: int) -> None:
        """`> k rm p` is read by the grammar as one redirection with three targets: bash runs `rm p`."""
        redirects, documents, extra = self._redirects(node, scope, depth)
        inner = replace(
            scope, redirects=scope.redirects + redirects, documents=scope.documents + documents,
            piped=scope.piped or any(r.reads for r in redirects),
        )  # fmt: skip
        body = node.child_by_field_name("body")
        if body is not None and body.type in ("command", "declaration_command", "unset_command"):
            self._visit_command(body, inner, depth, extra)  # which may have redirections of its own: `> a ls > b`
        elif body is not None:
            if extra:
                self._fail("words after a redirection")
            self._visit(body, inner, depth)
            self._add(SimpleCommand(redirects=redirects, repeats=scope.repeats))
        else:
            self._add(SimpleCommand(words=tuple(extra), redirects=redirects, documents=documents, repeats=scope.repeats))

    def _redirects(self, node: Any, scope: _Scope, depth: int) -> tuple[tuple[Redirect, ...], tuple[str, ...], list[Word]]:
        redirects, documents, extra = [], [], []
        for child in node.children:
            if child.type == "file_redirect":
                redirect, words = self._file_redirect(child, depth)
                redirects.append(redirect)
                extra += words
            elif child.type == "herestring_redirect":
                documents += [self._word(c, depth).text for c in child.children if c.type in _WORDS][:1]
            elif child.type == "heredoc_redirect":
                more_redirects, more_documents, more_words = self._heredoc(child, scope, depth)
                redirects += more_redirects
                documents += more_documents
                extra += more_words
        return tuple(redirects), tuple(documents), extra

    def _file_redirect(self, node: Any, depth: int) -> tuple[Redirect, list[Word]]:
        operator = next((self._text(c) for c in node.children if not c.is_named and set(c.type) <= set("<>&|-")), ">")
        targets = self._words([c for c in node.children if c.type in _WORDS], depth)
        if operator in (">&", "<&", ">&-", "<&-") and (not targets or re.fullmatch(r"\d*-?", targets[0].text)):
            return Redirect(operator, None), targets[1:]
        return Redirect(">" if operator == ">&" else operator, targets[0] if targets else None), targets[1:]

    def _heredoc(self, node: Any, scope: _Scope, depth: int) -> tuple[list[Redirect], list[str], list[Word]]:
        redirects, documents, extra = [], [], []
        start = next((self._text(c) for c in node.children if c.type == "heredoc_start"), "")
        quoted = any(char in start for char in "'\"\\")
        for child in node.children:
            if child.type == "heredoc_body":
                documents.append(self._heredoc_body(child, start, quoted, depth))
            elif child.type == "file_redirect":
                redirect, words = self._file_redirect(child, depth)
                redirects.append(redirect)
                extra += words
            elif child.type in _WORDS:
                extra.append(self._word(child, depth))
            elif child.type == "herestring_redirect":
                self._fail("a here-string beside a here-document")
            elif child.is_named and child.type not in ("heredoc_start", "heredoc_end"):
                self._visit(child, replace(scope, piped=True), depth)
        return redirects, documents, extra

    def _heredoc_body(self, node: Any, start: str, quoted: bool, depth: int) -> str:
        text = self._text(node)
        delimiter = re.sub(r"['\"\\]", "", start)
        if any(line.lstrip("\t") == delimiter for line in text.split("\n")):
            self._fail("the end of a here-document is not clear")
        if quoted:
            return text
        self._children(node, _Scope(), depth)
        spans = [(c.start_byte, c.end_byte) for c in node.children if c.type != "heredoc_content"]
        for match in re.finditer(rb"(\\*)(`|\$\(|\$\{|\$\[)", self.source[node.start_byte : node.end_byte]):
            at = node.start_byte + match.start(2)
            if len(match[1]) % 2 == 0 and not any(s <= at < e for s, e in spans):
                spans.append(self._missed_substitution(at, node.end_byte))
        return re.sub(r"\$\w+|\$\{[^}]*\}|\$\(.*?\)", WILD, text, flags=re.DOTALL)

    def _missed_substitution(self, at: int, end: int) -> tuple[int, int]:
        """The grammar overlooks substitutions in some places of a here-document: read the one at `at` as a word of its own.
        Gives the stretch that was read."""
        inner = _Reader(b": " + self.source[at:end], self.level + 1)
        node = tree(inner.source).root_node.descendant_for_byte_range(2, 3)
        while node is not None and node.type not in _SUBSTITUTIONS and node.parent is not None and node.parent.start_byte == 2:
            node = node.parent
        if node is None or node.type not in _SUBSTITUTIONS or node.has_error or self.level >= MAX_CARRIED:
            self._fail("a substitution in a here-document was not understood")
            return at, end
        alone = inner.source[: node.end_byte]
        inner._word(node, 0)
        self.commands += inner.commands
        self.problem = self.problem or inner.problem or misreading(tree(alone).root_node, alone)
        return at, at + node.end_byte - 2

    def _visit_herestring_redirect(self, node: Any, scope: _Scope, depth: int) -> None:
        self._children(node, _Scope(), depth)

    def _visit_command(self, node: Any, scope: _Scope, depth: int, more: Sequence[Word] = ()) -> None:
        redirects, documents, extra = self._redirects(node, scope, depth)
        piped = scope.piped or any(r.reads for r in redirects)
        inner = replace(scope, redirects=scope.redirects + redirects, documents=scope.documents + documents, piped=piped)
        self._command(node, inner, depth, [*extra, *more])

    _visit_declaration_command = _visit_command
    _visit_unset_command = _visit_command

    def _command(self, node: Any, scope: _Scope, depth: int, extra: list[Word]) -> None:
        nodes: list[Any] = []
        assignments = []
        for child in node.children:
            if child.type == "variable_assignment" and not nodes:
                assignments.append(self._assignment(child, depth))
            elif child.type == "variable_assignment":
                self._assignment(child, depth)
                nodes.append(child)
            elif child.type in ("command_name", *_WORDS) or not child.is_named:
                nodes.append(child)
        if node.type == "command" and any(n.type.startswith("<<") or n.type in "<>&|" for n in nodes if not n.is_named):
            nodes = [n for n in nodes if n.is_named or n.type == "$"]
        words = self._words(nodes, depth)
        if words and words[0].raw in ("time", "coproc") and any(word.raw in _RESERVED for word in words[1:4]):
            self._fail(f"a group under `{words[0].raw}`")
        self._add(
            SimpleCommand(
                words=(*words, *extra),
                assignments=tuple(assignments),
                redirects=scope.redirects,
                documents=scope.documents,
                piped=scope.piped,
                repeats=scope.repeats,
                defined=bool(words) and words[0].raw in self.functions,
            )
        )

    def _visit_variable_assignment(self, node: Any, scope: _Scope, depth: int) -> None:
        assignment = self._assignment(node, depth)
        self._add(SimpleCommand(assignments=(assignment,), redirects=scope.redirects, repeats=scope.repeats))

    def _assignment(self, node: Any, depth: int) -> Assignment:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        label = self._text(name).partition("[")[0] if name is not None else ""
        if name is not None and name.type == "subscript":
            self._arithmetic(name, depth)
        if value is not None and value.type == "array":
            words = self._words([c for c in value.children if c.is_named], depth)
            word = Word(self._text(value), WILD)
        else:
            word = self._word(value, depth) if value is not None else Word("", "")
            words = [word]
        for one in words:
            self._set(label, one, value)
        return Assignment(label, word)

    def _set(self, name: str, word: Word, node: Any = None) -> None:
        numeric = bool(_NUMERIC.fullmatch(word.text)) or (node is not None and node.type == "arithmetic_expansion")
        self.assigned[name] = self.assigned.get(name, True) and numeric
        known = self.values.setdefault(name, [])
        if WILD in word.text and not word.glob:
            self.values[name] = None
        elif known is not None:
            known.append(word)

    def _visit_for_statement(self, node: Any, scope: _Scope, depth: int) -> None:
        name = next((self._text(c) for c in node.children if c.type == "variable_name"), "")
        values = [c for c in node.children if c.type in _WORDS and c.type != "variable_name"]
        words = self._words(values, depth)
        for word in words or [Word("$@", WILD)]:
            self._set(name, word)
        self._add(SimpleCommand(assignments=(Assignment(name, Word(name, WILD)),), repeats=scope.repeats))
        for child in node.children:
            if child.is_named and child.type not in _WORDS:
                self._visit(child, replace(scope, repeats=True), depth)

    def _visit_c_style_for_statement(self, node: Any, scope: _Scope, depth: int) -> None:
        for child in node.children:
            if child.type in ("do_group", "compound_statement"):
                self._visit(child, replace(scope, repeats=True), depth)
            elif child.is_named:
                self._arithmetic(child, depth)

    def _visit_while_statement(self, node: Any, scope: _Scope, depth: int) -> None:
        self._children(node, replace(scope, repeats=True), depth)

    def _visit_function_definition(self, node: Any, scope: _Scope, depth: int) -> None:
        name = node.child_by_field_name("name")
        if name is not None and node.parent is not None and node.parent.type == "program":
            self.functions.add(self._text(name))  # only there it is certain that later calls mean this body
        redirects, documents, extra = self._redirects(node, scope, depth)
        if documents or extra:
            self._fail("a function with a here-document")
        if redirects:
            self._add(SimpleCommand(redirects=redirects, repeats=True))
        body = node.child_by_field_name("body")
        if body is not None:
            self._visit(body, replace(scope, repeats=True, piped=True), depth)

    def _visit_case_statement(self, node: Any, scope: _Scope, depth: int) -> None:
        for child in node.children:
            self._visit(child, scope, depth)

    def _visit_compound_statement(self, node: Any, scope: _Scope, depth: int) -> None:
        if node.children and node.children[0].type == "((":
            self._arithmetic(node, depth)
        else:
            self._children(node, scope, depth)

    def _visit_test_command(self, node: Any, scope: _Scope, depth: int) -> None:
        """`[[ x -eq y ]]` and `-v x` evaluate arithmetic, so a text in them may run a command."""
        if node.children and node.children[0].type == "((":
            self._arithmetic(node, depth)
            return
        self._add(SimpleCommand(words=(Word("test", "test"),), repeats=scope.repeats))
        operators = {self._text(c) for c in descendants(node) if c.type == "test_operator" or c.type in _ARITHMETIC_TESTS}
        if operators & _ARITHMETIC_TESTS:
            self._arithmetic(node, depth, plain=node.children[0].type == "[" and not operators & {"-v", "-R"})
        else:
            self._children(node, _Scope(repeats=scope.repeats), depth)

    def _visit_word(self, node: Any, scope: _Scope, depth: int) -> None:
        self._word(node, depth)

    _visit_string = _visit_concatenation = _visit_expansion = _visit_raw_string = _visit_word
    _visit_arithmetic_expansion = _visit_simple_expansion = _visit_subscript = _visit_word

    def _visit_command_substitution(self, node: Any, scope: _Scope, depth: int) -> None:
        self._children(node, _Scope(repeats=scope.repeats), depth)
        redirects, _, extra = self._redirects(node, scope, depth)  # `$(<file)`: bash reads it, without a command
        self._add(SimpleCommand(words=tuple(extra), redirects=redirects, repeats=scope.repeats))

    def _visit_process_substitution(self, node: Any, scope: _Scope, depth: int) -> None:
        self._children(node, _Scope(repeats=scope.repeats, piped=True), depth)

    def _add(self, command: SimpleCommand) -> None:
        if command.words or command.assignments or command.redirects:
            self.commands.append(command)

    # words

    def _words(self, nodes: Sequence[Any], depth: int) -> list[Word]:
        """Nodes that touch are one word for bash; braces make one word many."""
        words: list[Word] = []
        end = -1
        for node in nodes:
            if node.type == "$" and not node.is_named:
                end = node.end_byte  # `$"…"`: a translated string
                if not any(n.start_byte == end for n in nodes):
                    words.append(Word("$", "$"))
                continue
            word = self._word(node, depth)
            if words and node.start_byte == end and not self._follows_dollar(node):
                words[-1] = words[-1] + word
            else:
                words.append(word)
            end = node.end_byte
        return [expanded for word in words for expanded in expand_braces(word)]

    def _follows_dollar(self, node: Any) -> bool:
        return self.source[node.start_byte - 1 : node.start_byte] == b"$"

    def _word(self, node: Any, depth: int) -> Word:
        """The value of one word, and the walk over what stands inside it."""
        if depth > MAX_DEPTH:
            self._fail("the command is nested too deeply")
            return Word("", WILD)
        raw = self._text(node)
        kind = node.type
        if kind in ("word", "number", "variable_name", "test_operator", "extglob_pattern", "regex", "special_variable_name"):
            self._children(node, _Scope(), depth + 1)
            if kind in ("word", "extglob_pattern", "regex") and re.search(r"(?<!\\)(`|\$\(|\$\{)", raw) and not node.children:
                self._fail("a substitution was not understood")
            return unquote_word(raw)
        if kind in DECLARERS and not node.is_named:
            return Word(raw, raw)
        if kind == "raw_string":
            return Word(raw, raw[1:-1])
        if kind == "ansi_c_string":
            return Word(raw, decode_ansi_c(raw[2:-1]))
        if kind == "translated_string":
            return replace(self._word(node.children[-1], depth + 1), raw=raw)
        if kind == "string":
            return Word(raw, self._string(node, depth + 1), var=self._only_variable(node))
        if kind in ("concatenation", "command_name", "variable_assignment"):
            return self._concatenation(node, raw, depth)
        if kind == "arithmetic_expansion":
            self._arithmetic(node, depth + 1)
            return Word(raw, WILD)
        if kind == "expansion":
            self._expansion(node, raw, depth + 1)
        elif kind == "subscript":
            self._arithmetic(node, depth + 1)
        elif kind in ("command_substitution", "process_substitution"):
            self._visit(node, _Scope(), depth + 1)
        elif kind != "simple_expansion":
            self._children(node, _Scope(), depth + 1)
        return Word(raw, WILD, splits=True, var=_variable(raw), glob=kind == "brace_expression")

    def _concatenation(self, node: Any, raw: str, depth: int) -> Word:
        if node.type == "command_name" and len(node.children) == 1:
            return self._word(node.children[0], depth + 1)
        text, glob, splits, end, opened = "", False, False, node.start_byte, None
        for child in node.children:
            gap = self.source[end : child.start_byte].decode("utf-8", "replace")
            if not child.is_named and child.type == "$" and self.source[child.end_byte : child.end_byte + 1] in (b'"', b"'"):
                part = Word("$", "")
            elif child.is_named:
                part = self._word(child, depth + 1)
            else:
                part = Word("``", "") if child.type == "``" else unquote_word(self._text(child))
            text += gap + part.text
            glob, splits, end = glob or part.glob, splits or part.splits, child.end_byte
            if opened is None and not part.raw.startswith(("'", '"', "$")) and open_bracket(part.raw):
                opened = text.rpartition("[")[0]
        if not node.children:
            return unquote_word(raw)
        if opened is not None:  # a pattern, if a later piece closes it
            return Word(raw, opened + WILD, glob=True, splits=True)
        return Word(raw, text, glob=glob, splits=splits)

    def _string(self, node: Any, depth: int) -> str:
        """Inside double quotes. The grammar leaves blanks out of its nodes: the gaps belong to the text."""
        text, end = "", node.start_byte
        for child in node.children:
            gap = self.source[end : child.start_byte].decode("utf-8", "replace")
            end = child.end_byte
            if not child.is_named:
                text += gap + ("" if child.type == '"' else self._text(child))
                continue
            text += gap
            if child.type == "string_content":
                content = self._text(child)
                if re.search(r"(?<!\\)(?:\\\\)*(`|\$\(|\$\{)", content):
                    self._fail("a substitution in a string was not understood")
                text += re.sub(r'\\([$`"\\])', r"\1", content.replace("\\\n", ""))
            else:
                text += self._word(child, depth).text
        return text

    def _only_variable(self, node: Any) -> str | None:
        inner = [c for c in node.children if c.is_named]
        if len(inner) == 1 and len(self._text(node)) == len(self._text(inner[0])) + 2:
            return _variable(self._text(inner[0]))
        return None

    def _expansion(self, node: Any, raw: str, depth: int) -> None:
        if re.search(r"@P\}$", raw):
            self._opaque("`@P` runs what stands in a variable")
        if raw.startswith("${!") and not re.fullmatch(r"\$\{![A-Za-z_]\w*(?:[@*]|\[[@*]\])\}", raw):
            self._opaque("an indirect expansion evaluates what stands in a variable")
        match = re.match(r"\$\{!?([A-Za-z_]\w*)", raw)
        if match and re.match(r"\$\{\w+:?=", raw):
            self._add(SimpleCommand(assignments=(Assignment(match[1], Word(raw, WILD)),)))
            self._set(match[1], Word(raw, WILD))
        if re.match(r"\$\{\w+(\[[^\]]*\])?:[^-=?+]", raw):
            self._arithmetic(node, depth, skip_first=True)
        else:
            for child in node.children:
                if child.is_named:
                    self._word(child, depth) if child.type in _WORDS else self._visit(child, _Scope(), depth)

    # arithmetic: bash evaluates the *value* of a variable as an expression, and `a[$(cmd)]` in it runs cmd

    def _arithmetic(self, node: Any, depth: int, plain: bool = False, skip_first: bool = False) -> None:
        if node.type == "subscript" and self._text(node).endswith(("[@]", "[*]")):
            return
        for child in descendants(node):
            if child.type in ("variable_name", "word", "simple_expansion", "expansion") and not plain:
                name = _variable(self._text(child)) or self._text(child)
                if re.fullmatch(r"\$\{?[0-9@*]+\}?", name):
                    self._opaque("arithmetic over an argument may run a command")
                self.computed.add(name)
            if child.type in ("raw_string", "ansi_c_string") and re.search(r"[\[`$]", self._text(child)):
                self._opaque("a text inside arithmetic may run a command")
            if child.type == "command_substitution" and not plain:
                self._opaque("arithmetic over the output of a command may run a command")
        for child in node.children:
            if child.is_named:
                self._visit(child, _Scope(), depth + 1)

    def _check_arithmetic(self) -> None:
        if any(not self.assigned.get(name, True) for name in self.computed):
            self._opaque("arithmetic over a variable that holds a text may run a command")

    def _opaque(self, reason: str) -> None:
        if not any(c.opaque == reason for c in self.commands):
            self.commands.append(SimpleCommand(opaque=reason))

    def _with_values(self, command: SimpleCommand) -> SimpleCommand:
        """`for f in *.py; do cat "$f"`: what `$f` may be is known from the same text."""
        words = tuple(self._with_value(word) for word in command.words)
        return replace(command, words=words) if words != command.words else command

    def _with_value(self, word: Word) -> Word:
        values = self.values.get(word.var) if word.var else self._spliced(word)
        return replace(word, values=tuple(values)) if values else word

    def _spliced(self, word: Word) -> list[Word]:
        """`-$i`, `src/$d`: the whole words, where every value of the one variable is a plain text."""
        match = _SPLICED.fullmatch(word.raw)
        values = (self.values.get(match[2] or match[3]) or []) if match else []
        if match is None or not all(re.fullmatch(r"[\w.-]+", value.raw, re.ASCII) for value in values):
            return []
        return [unquote_word(match[1] + value.raw + (match[4] or "")) for value in values]

    # what a command carries

    def _carried(self, command: SimpleCommand) -> Iterator[SimpleCommand]:
        for item in carried(command):
            if isinstance(item, Script):
                yield from self._script(item, command)
            else:
                inner = replace(command, words=tuple(item), carried=True, assignments=(), redirects=())
                yield inner

    def _script(self, script: Script, command: SimpleCommand) -> Iterator[SimpleCommand]:
        if script.text is None or WILD in script.text:
            yield SimpleCommand(opaque=script.hidden, carried=True)
        if script.text is None:
            return
        if self.level >= MAX_CARRIED:
            yield SimpleCommand(opaque="shells inside shells inside shells", carried=True)
            return
        parsed = _parse(script.text.replace(WILD, "$_"), self.level + 1)
        if isinstance(parsed, Unparsable):
            yield SimpleCommand(opaque=f"inside {command.base_name}: {parsed.reason}", carried=True)
        for inner in parsed.commands if isinstance(parsed, Unparsable) else parsed:
            yield replace(inner, carried=True)


def _variable(raw: str) -> str | None:
    match = re.fullmatch(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", raw, re.ASCII)
    return (match[1] or match[2]) if match else None
