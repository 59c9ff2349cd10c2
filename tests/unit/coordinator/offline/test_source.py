"""Which definition encloses a line, in each language that is known; and nothing where a file could be misread."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.offline.plans import NOTES
from coordinator.offline.source import DEFINITIONS, defines, enclosing, is_comment

PYTHON = '''\
class Book:
    """def not_one():"""

    @property
    def balance(self):
        text = """
def neither():
"""
        return sum(self.entries)  # inside

    limit = 3


total = 1
'''
SHELL = """\
greet() {
  cat <<END
other() {
END
  echo hi
}
echo done
"""
SCRIPT = """\
import x from 'y';
const fn = {};
fn.mountpath = '/';
export class Page extends Base {
  render(props) {
    const text = `a { ${props.b} `;
    if (props.x) { // } {
      return /[{]"/.test(text);
    }
    for (let i = 0; i < 3; i++) {
      call(() => { inner(); });
    }
  }
}
const load = async (id) => {
  return id;
};
test('a name', () => {
  load(1);
});
"""
GO = """\
package main

func (s *Server) Run(addr string) error {
	if s == nil {
		return nil
	}
	c := '{'
	return s.serve(addr, `{`)
}

type Server struct {
	name string
}
"""
RUST = """\
impl<'a> Parser<'a> {
    #[inline]
    pub fn next(&'a mut self) -> Option<char> {
        match self.c {
            '{' => None,
            _ => Some('x'),
        }
    }
}
"""
C = """\
#include <stdio.h>
struct point {
    int x;
};
static int
add(int a, int b)
{
    while (a) { a--; }
    return a + b; /* { */
}
"""
JAVA = """\
public class Book {
    @Override
    public String title(int n) throws Exception {
        return "{" + n;
    }
}
"""


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", PYTHON, {2: 1, 7: 5, 9: 5, 11: 1, 14: None, 1: None}),
        ("a.sh", SHELL, {3: 1, 5: 1, 7: None}),
        ("a.ts", SCRIPT, {3: None, 6: 5, 8: 5, 11: 5, 5: 4, 16: 15, 19: None}),
        ("a.go", GO, {5: 3, 8: 3, 12: 11, 1: None}),
        ("a.rs", RUST, {5: 3, 6: 3, 3: 1}),
        ("a.c", C, {3: 2, 8: 6, 9: 6, 1: None}),
        ("A.java", JAVA, {4: 3, 3: 1}),
        ("a.py", "def f(:\n    x\n", {2: None}),
        ("a.js", "function f() {\n  it's broken\n}\n", {2: None}),
        ("a.js", "function f() {\n  x\n", {2: None}),
        ("a.js", "}\nfunction f() {\n  x\n}\n", {3: None}),
        ("a.txt", "def f():\n    x\n", {2: None}),
    ],
)
def test_a_line_stands_in_the_innermost_definition_around_it(path: str, text: str, expected: dict[int, int | None]) -> None:
    assert {line: enclosing(path, text, line) for line in expected} == expected


@pytest.mark.parametrize(
    ("path", "begins", "does_not"),
    [
        ("a.py", ["def f(x):", "    async def g[T](", "class A:", "class B(A):"], ["class of things", "default = 1", "defer()"]),
        ("a.js", ["export default function f() {", "class A {", "const f = async (x) => {", "function* g() {"],
         ["fn.mountpath = '/'", "module.exports = x", "type = 1", "export { a };", "const a = 3;", "public = 1"]),
        ("a.ts", ["interface A {", "export type B<T> = string;"], ["type: string;"]),
        ("a.go", ["func Run() {", "func (s *S) Run() {", "type S struct {"], ["type = 3", "func() {"]),
        ("a.rs", ["pub(crate) async fn f<T>() {", "impl Foo for Bar {", "macro_rules! m {"], ["type_of(x)", "pub use x;"]),
        ("a.c", ["int main(void) {", "static char *f(int a,", "struct point {"], ["return f(x);", "FOO(bar)", "  int x = f(a);"]),
        ("A.java", ["public class A {", "  List<String> f(int a) {", "  private void g() {"], ["  return new A();", "  foo(bar);"]),
        ("a.rb", ["def x?", "class A < B", "module M"], ["define :x", "classify"]),
        ("a.sh", ["f() {", "function g {", "function h"], ["export FOO=1", "type ls"]),
        ("a.txt", [], ["def f():"]),
    ],
)  # fmt: skip
def test_a_line_that_only_looks_like_a_definition_is_none(path: str, begins: list[str], does_not: list[str]) -> None:
    assert [line for line in begins if not defines(path, line)] == []
    assert [line for line in does_not if defines(path, line)] == []


NOTE_LINES = [
    "# TODO: a", "x = 1  # TODO a", "// FIXME(ann) a", "foo('x'); // XXX", "/* HACK: a */", " * TODO a", "<!-- TODO a -->",
    "TODO: as text", "- [ ] TODO a", "  # later. TODO: b", "print(\"it's\")  # FIXME", "fn f<'a>(x: &'a str) { // TODO", "; TODO a",
    "#TODO", "**TODO**: bold",
]  # fmt: skip
OTHER_LINES = [
    'MARKS = r"\\b(TODO|FIXME)\\b"', 'text = "a  # TODO b"', "url = 'http://x // TODO'", "AAAA/TODO+BBBB//XXX/9", "//TODO+QUJD/XXX==",
    "# lists the TODO lines of a file", "TODO = 3", "if TODO in line:", "call(`x // TODO`)", "# autodoc", "the HACK of it",
]  # fmt: skip


def test_a_note_of_open_work_is_one_in_a_comment() -> None:
    assert [line for line in NOTE_LINES if not re.search(NOTES, line)] == []
    assert [line for line in OTHER_LINES if re.search(NOTES, line)] == []


def test_ripgrep_reads_the_patterns_as_python_does(tmp_path: Path) -> None:
    import subprocess

    from worker_agent.tools.builtin import ripgrep

    (tmp_path / "lines").write_text("\n".join([*NOTE_LINES, *OTHER_LINES]) + "\n")
    for pattern in (NOTES, *DEFINITIONS.values()):
        command = [
            str(ripgrep.program()),
            "--no-config",
            "--line-number",
            "--engine=auto",
            f"--regexp={pattern}",
            str(tmp_path / "lines"),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        found = {int(line.split(":")[0]) for line in done.stdout.splitlines()}
        wanted = {n for n, line in enumerate([*NOTE_LINES, *OTHER_LINES], 1) if re.search(pattern, line)}
        assert (done.stderr, found) == ("", wanted)


def test_a_string_of_several_lines_holds_no_comments() -> None:
    text = 'x = """\n# TODO a\n"""\n# TODO b\ndef f():\n    """TODO: c"""\n'
    assert [is_comment("a.py", text, line) for line in (2, 4, 6)] == [False, True, True]
    assert is_comment("a.py", "x = (", 1) is None
    assert is_comment("a.js", "// TODO", 1) is None
