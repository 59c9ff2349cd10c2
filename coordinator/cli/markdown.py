"""Markdown for a terminal that is read and copied from: pure, from a text to lines with styles.

1. A paragraph is one line: the terminal wraps it, and what is copied is the paragraph again. Nothing is padded, no box is
   drawn; a table is columns with two spaces between.
2. Code stands as it is written, without a frame and without an indent of ours.
3. What is not known here is shown as its source. The text has passed `literal` before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from coordinator.cli.render import Line, Piece
from coordinator.views.terminal_text import columns

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

CODE = "cyan"
INLINE = {"strong": "bold", "em": "italic", "s": "strike"}
BULLET = "• "
LARGEST = 200_000  # characters; what is longer is shown as it is


def lines(text: str) -> list[Line]:
    """The text as lines; each is whole, however long."""
    if len(text) > LARGEST:
        return [(Piece(line),) for line in text.split("\n")]
    from markdown_it.tree import SyntaxTreeNode

    tree = SyntaxTreeNode(_parser().parse(text))
    return list(_blocks(tree.children, text.split("\n")))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def _blocks(nodes: Sequence[SyntaxTreeNode], source: Sequence[str], *, tight: bool = False) -> Iterator[Line]:
    for i, node in enumerate(nodes):
        if i and not tight:
            yield ()
        yield from _block(node, source)


def _block(node: SyntaxTreeNode, source: Sequence[str]) -> Iterator[Line]:
    match node.type:
        case "heading":
            yield from _inline(node, "bold")
        case "paragraph":
            yield from _inline(node, "")
        case "fence" | "code_block":
            yield from ((Piece(line, CODE),) for line in node.content.rstrip("\n").split("\n"))
        case "bullet_list" | "ordered_list":
            yield from _list(node, source)
        case "blockquote":
            for line in _blocks(node.children, source):
                yield (Piece("> ", "dim"), *line) if line else (Piece(">", "dim"),)
        case "hr":
            yield (Piece("* * *", "dim"),)
        case "table":
            yield from _table(node)
        case _:
            begin, end = node.map or (0, 0)
            yield from ((Piece(line),) for line in source[begin:end])


def _list(node: SyntaxTreeNode, source: Sequence[str]) -> Iterator[Line]:
    tight = all(child.hidden for item in node.children for child in item.children if child.type == "paragraph")
    first = int(node.attrs.get("start", 1) or 0) if node.type == "ordered_list" else None
    for i, item in enumerate(node.children):
        if i and not tight:
            yield ()
        mark = BULLET if first is None else f"{first + i}. "
        for n, line in enumerate(_blocks(item.children, source, tight=tight)):
            yield (Piece(mark if n == 0 else " " * len(mark)), *line) if line else ()


def _inline(node: SyntaxTreeNode, style: str) -> Iterator[Line]:
    """The words of a block: one line, but where the writer forced a break."""
    line: list[Piece] = []
    for piece in _pieces(node.children, style):
        if piece.text == "\n":
            yield tuple(line)
            line = []
        else:
            line.append(piece)
    yield tuple(line)


def _pieces(nodes: Sequence[SyntaxTreeNode], style: str) -> Iterator[Piece]:
    for node in nodes:
        match node.type:
            case "text":
                yield Piece(node.content, style)
            case "code_inline":
                yield Piece(node.content, _both(style, CODE))
            case "softbreak":
                yield Piece(" ", style)
            case "hardbreak":
                yield Piece("\n")
            case "link":
                yield from _link(node, style)
            case "image":
                yield Piece(f"{node.content} ({node.attrs.get('src', '')})".strip(), style)
            case "inline":
                yield from _pieces(node.children, style)
            case kind if kind in INLINE:
                yield from _pieces(node.children, _both(style, INLINE[kind]))
            case _:
                yield Piece(node.content, style)


def _link(node: SyntaxTreeNode, style: str) -> Iterator[Piece]:
    """The words, and where they lead if they do not say it."""
    words, target = list(_pieces(node.children, style)), str(node.attrs.get("href", ""))
    yield from words
    if target and "".join(piece.text for piece in words) != target:
        yield Piece(f" ({target})", _both(style, "dim"))


def _both(one: str, other: str) -> str:
    return f"{one} {other}".strip()


def _table(node: SyntaxTreeNode) -> Iterator[Line]:
    rows = [row for part in node.children for row in part.children]
    cells = [[tuple(_pieces(cell.children, "bold" if cell.type == "th" else "")) for cell in row.children] for row in rows]
    wide = [max(map(_width, column)) for column in zip(*cells, strict=False)]
    for row in cells:
        line: list[Piece] = []
        for i, cell in enumerate(row):
            line += cell
            if i < len(row) - 1:
                line.append(Piece(" " * (wide[i] - _width(cell) + 2)))
        yield tuple(line)


def _width(cell: Line) -> int:
    return sum(columns(piece.text) for piece in cell)
