"""Run as a program: PATH FIRST LAST → JSON with the texts of these pages and the number of pages, on stdout.

Imports nothing of ours: it runs isolated, in a process that may be killed at any time.
"""

import json
import logging
import sys

MEMORY = 2 * 1024**3  # bytes of address space


def main(path: str, first: int, last: int) -> int:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, OSError, ValueError):
        pass  # no such limit on this system; the time limit remains
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.disable(logging.CRITICAL)
    try:
        reader = PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            print("it is encrypted with a password", file=sys.stderr)
            return 1
        total = len(reader.pages)
        texts = [reader.pages[i].extract_text() for i in range(first - 1, min(last, total))]
    except (PyPdfError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except (RecursionError, MemoryError):
        print("its structure is too deep or too large", file=sys.stderr)
        return 1
    json.dump({"texts": texts, "total": total}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
