"""Run as a program: HTML (UTF-8) on stdin → Markdown on stdout.

Imports nothing of ours: it runs isolated, in a process that may be killed at any time.
"""

import re
import sys

MEMORY = 2 * 1024**3  # bytes of address space
LEFT_OUT = ("script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "head")


def main() -> int:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, OSError, ValueError):
        pass  # no such limit on this system; the time limit remains
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    soup = BeautifulSoup(sys.stdin.buffer.read().decode("utf-8", "replace"), "html.parser")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    for element in soup(LEFT_OUT):
        element.decompose()
    try:
        text = MarkdownConverter(heading_style="ATX", bullets="-").convert_soup(soup)
    except RecursionError:
        text = "\n".join(soup.stripped_strings)  # nested too deep to be converted: the bare text
    text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()
    if title and not text.startswith(f"# {title}"):
        text = f"# {title}\n\n{text}"
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
