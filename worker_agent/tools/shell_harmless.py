"""What runs unasked: lines that are harmless by proof. A positive table of commands, options and kinds of words.

Rules:

1. Nothing that is not in the table runs unasked: a command, an option (long ones spelled in full), a value of another kind.
2. Short options are bundled only where every letter is listed; a letter with a value takes the rest of its word or the
   next word, as `getopt` has it, so every letter that a command knows with a value is listed as one, or not at all.
3. Every file that is named is resolved through links and must be inside the roots, outside the places of secrets, and
   named by no deny or ask rule. What reads a whole tree is asked about the tree.
4. Only literal words and globs that we expand. A name that begins with `-` is an option to every command: it asks.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path

from msgspec import Struct, field

from worker_agent.tools.places import grants_rights
from worker_agent.tools.rules import resolve
from worker_agent.tools.shell_git_harmless import git_is_harmless
from worker_agent.tools.shell_line import Part, Plain, read_line
from worker_agent.tools.shell_sight import MAX_FILES, Sight

MAX_PLACES = 8  # directories in which one part may stand


class Kind(Enum):
    NUMBER = auto()  # `5`, `+5`, `-5`, `10k`
    TEXT = auto()  # a pattern or any other text that the command does not take for a file
    NAME = auto()  # letters, digits and `_ - , . : +`
    FORMAT = auto()  # `+%F`
    FILTER = auto()  # a program for jq that reads nothing but its input
    FILE = auto()  # one file or directory, not what lies below
    TREE = auto()  # with all that lies below, links not followed
    LISTING = auto()  # the names of all that lies below, no content
    LINKED_TREE = auto()  # with all that lies below, links followed


_KINDS = {
    Kind.NUMBER: re.compile(r"[+-]?\d+[A-Za-z]{0,2}"),
    Kind.NAME: re.compile(r"[\w,.:+/-]+", re.ASCII),
    Kind.FORMAT: re.compile(r"\+.*"),
}


class Spec(Struct, frozen=True):
    """One command's options and operands. `first` is the kind of its first operand unless one of `instead` is given;
    `least`/`most` count operands; `deeper` are options that make it read all below, `follows` those that follow links;
    `alone`: what it reads when no file is named."""

    flags: str = ""
    valued: Mapping[str, Kind] = field(default_factory=dict)
    long: frozenset[str] = frozenset()
    long_valued: Mapping[str, Kind] = field(default_factory=dict)
    operands: Kind | None = Kind.FILE
    first: Kind | None = None
    instead: frozenset[str] = frozenset()
    least: int = 0
    most: int = 1_000
    deeper: frozenset[str] = frozenset()
    follows: frozenset[str] = frozenset()
    alone: Kind | None = None
    number: bool = False  # `-5`
    depth: Kind = Kind.TREE  # what `deeper` makes of its operands
    apart: bool = False  # a value is always the next word


def _spec(
    flags: str = "", *, long: str = "", valued: str = "", names: str = "", texts: str = "", files: str = "",
    deeper: str = "", follows: str = "", instead: str = "", operands: Kind | None = Kind.FILE, first: Kind | None = None,
    least: int = 0, most: int = 1_000, alone: Kind | None = None, number: bool = False,
    apart: bool = False, depth: Kind = Kind.TREE,
) -> Spec:  # fmt: skip
    """`valued`, `names`, `texts`, `files` are options with a value of that kind, short ones as `-x`."""
    kinds = {
        option: kind
        for kind, options in ((Kind.NUMBER, valued), (Kind.NAME, names), (Kind.TEXT, texts), (Kind.FILE, files))
        for option in options.split()
    }
    return Spec(
        flags, {o[1]: k for o, k in kinds.items() if not o.startswith("--")}, frozenset(long.split()),
        {o: k for o, k in kinds.items() if o.startswith("--")}, operands, first, frozenset(instead.split()), least, most,
        frozenset(deeper.split()), frozenset(follows.split()), alone, number, depth, apart,
    )  # fmt: skip


_GREP = _spec(
    "EFGPciHhlLnoqsvwxzZyabITrRU",
    long="""--extended-regexp --fixed-strings --perl-regexp --basic-regexp --count --ignore-case --no-ignore-case --with-filename
    --no-filename --files-with-matches --files-without-match --line-number --only-matching --quiet --silent --no-messages
    --invert-match --word-regexp --line-regexp --null --text --byte-offset --recursive --dereference-recursive --color""",
    valued="-A -B -C -m --after-context --before-context --context --max-count", names="--color --binary-files",
    texts="-e --regexp --include --exclude --exclude-dir", first=Kind.TEXT, instead="-e --regexp", least=0,
    deeper="-r -R --recursive --dereference-recursive", follows="-R --dereference-recursive", number=True,
)  # fmt: skip

COMMANDS: Mapping[str, Spec] = {
    "ls": _spec(
        "aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxX1", names="--color --sort --time --time-style --format --indicator-style",
        texts="-I --ignore --hide", valued="-w",
        long="""--all --almost-all --human-readable --recursive --reverse --size --inode --directory --classify --full-time --color
        --group-directories-first --no-group --numeric-uid-gid --si""",
        alone=Kind.FILE, deeper="-R --recursive", follows="-L -H", depth=Kind.LISTING,
    ),
    "cat": _spec("AbeEnstTuv", long="--number --number-nonblank --show-all --show-ends --show-tabs --squeeze-blank --show-nonprinting"),
    "head": _spec("qvz", valued="-n -c --lines --bytes", long="--quiet --silent --verbose", number=True),
    "tail": _spec("qvz", valued="-n -c --lines --bytes", long="--quiet --silent --verbose", number=True),
    "wc": _spec("clLmw", long="--lines --words --chars --bytes --max-line-length"),
    "grep": _GREP, "egrep": _GREP, "fgrep": _GREP,
    "rg": _spec(
        "FHINSUacilnopqsuvwx0",
        long="""--fixed-strings --with-filename --no-filename --line-number --no-line-number --smart-case --ignore-case --case-sensitive
        --count --count-matches --files-with-matches --files-without-match --files --hidden --no-ignore --no-ignore-vcs --only-matching
        --quiet --invert-match --word-regexp --line-regexp --multiline --no-heading --heading --column --json --stats --no-messages
        --type-list --trim --vimgrep --pretty --text --no-config""",
        valued="-A -B -C -m -d -j --after-context --before-context --context --max-count --max-depth --max-columns --threads -M",
        names="-t -T --type --type-not --color --sort --sortr", texts="-e -g -r --regexp --glob --iglob --replace",
        first=Kind.TEXT, instead="-e --regexp --files --type-list", operands=Kind.TREE, alone=Kind.TREE,
    ),
    "sort": _spec(
        "bcCdfghiMmnRrsuVz", names="-k --key --sort", texts="-t --field-separator",
        long="--numeric-sort --reverse --unique --human-numeric-sort --version-sort --ignore-case --general-numeric-sort --stable --check",
    ),
    "uniq": _spec("cdDiuz", valued="-f -s -w", long="--count --repeated --unique --ignore-case", most=1),
    "cut": _spec("snz", names="-f -c -b --fields --characters --bytes", texts="-d --delimiter --output-delimiter",
                 long="--only-delimited --complement"),
    "nl": _spec("p", names="-b -n -h -f", valued="-w -v -i -l", texts="-s"),
    "diff": _spec(
        "abBcdeEiNqrstuwy", valued="-U -C -W --unified --context --width", texts="-I -x -L --exclude --label --ignore-matching-lines",
        long="""--brief --unified --side-by-side --recursive --new-file --ignore-case --ignore-all-space --ignore-space-change
        --ignore-blank-lines --context --report-identical-files --suppress-common-lines --minimal --color --text --no-dereference""",
        names="--color", least=2, most=2, operands=Kind.LINKED_TREE,
    ),
    "cmp": _spec("bls", valued="-n", long="--silent --quiet --verbose --print-bytes", least=2, most=2),
    "comm": _spec("123z", long="--check-order --nocheck-order --total", least=2, most=2),
    "stat": _spec("Ltf", texts="-c --format --printf", long="--dereference --terse --file-system", least=1),
    "file": _spec("bhiLN0", long="--brief --mime --mime-type --mime-encoding", least=1),
    "tree": _spec("adfhiCDFQpstugnAr", valued="-L --filelimit", texts="-I -P", long="--dirsfirst --noreport --prune --gitignore --du",
                  operands=Kind.LISTING, alone=Kind.LISTING, apart=True),
    "du": _spec("abchHkmsSx0", valued="-d -B -t --max-depth --threshold", names="--block-size", texts="--exclude",
                long="--all --apparent-size --bytes --total --human-readable --summarize --si", operands=Kind.LISTING, alone=Kind.LISTING),
    "basename": _spec("az", texts="-s --suffix", long="--multiple", operands=Kind.TEXT, least=1),
    "dirname": _spec("z", operands=Kind.TEXT, least=1),
    "realpath": _spec("emsqz", files="--relative-to --relative-base", long="--canonicalize-existing --no-symlinks --strip", least=1),
    "readlink": _spec("efmnqsvz", least=1),
    "which": _spec("a", operands=Kind.NAME, least=1),
    "seq": _spec("w", texts="-s", operands=Kind.NUMBER, least=1, most=3),
    "tr": _spec("cCdst", long="--delete --squeeze-repeats --complement", operands=Kind.TEXT, least=1, most=2),
    "date": _spec("uRI", names="--iso-8601 --rfc-3339", long="--utc --universal --iso-8601", texts="-d --date", operands=Kind.FORMAT, most=1),
    "jq": _spec(
        "crnsSeajMC", long="""--compact-output --raw-output --null-input --slurp --sort-keys --exit-status --ascii-output --join-output
        --monochrome-output --color-output --tab""",
        first=Kind.FILTER, least=1,
    ),
    "md5sum": _spec("bt", least=0), "sha1sum": _spec("bt"), "sha256sum": _spec("bt"), "cksum": _spec(),
    "tac": _spec(), "rev": _spec(), "column": _spec("tx", texts="-s -o", valued="-c"), "paste": _spec("sz", texts="-d"),
    "fold": _spec("bs", valued="-w"), "expand": _spec("i", valued="-t"), "od": _spec("cbdxov", names="-A -t", valued="-j -N -w"),
    "xxd": _spec("bpu", valued="-l -s -c -g", most=1), "strings": _spec("a", valued="-n"), "fmt": _spec(valued="-w"),
    "pwd": _spec("LP", operands=None), "true": _spec(operands=None), "false": _spec(operands=None), ":": _spec(operands=None),
    "whoami": _spec(operands=None), "nproc": _spec(operands=None), "uname": _spec("asnrvmpio", operands=None),
    "id": _spec("ugnGr", operands=None), "arch": _spec(operands=None), "uptime": _spec(operands=None),
    "df": _spec("hkTaiHlm", operands=Kind.FILE),
}  # fmt: skip

# No option of theirs writes or runs anything: whatever the words, they only read.
ONLY_READ = frozenset(
    """ls cat head tail wc grep egrep fgrep cut nl diff cmp comm stat du df basename dirname realpath readlink which type seq tr jq
    md5sum sha1sum sha256sum cksum tac rev column paste fold expand od strings fmt pwd cd echo true false : whoami nproc uname id
    arch uptime""".split()
)
# Exactly these words: a version tells nothing and does nothing.
_VERSIONS = frozenset(
    f"{name} {option}"
    for names, option in (
        ("python python3 node gcc make git rg jq grep bash sed awk tree", "--version"), ("python python3", "-V"), ("node", "-v"),
    )
    for name in names.split()
)  # fmt: skip


def harmless(parts: Sequence[Part], start: Path, sight: Sight) -> str | None:
    """None if all the parts of a line, begun in `start`, are harmless; else why not."""
    places: tuple[Path, ...] = (start,)
    for part in parts:
        if problem := part_problem(part, places, sight):
            return problem
        if part.words[0].text == "cd":
            places = tuple(dict.fromkeys((*places, *(place / part.words[1].text for place in places))))
    return None


def changes_nothing(command: str) -> bool:
    """Whether a line only reads, whatever it reads and wherever it runs. Not `cd`: where the next command stands is changed."""
    parts = read_line(command)
    return bool(parts) and all(_only_reads(part) for part in parts or ())


def _only_reads(part: Part) -> bool:
    name, words = part.words[0].text, part.words
    if words[0].is_glob or words[0].computed or name == "cd":
        return False
    if name in ONLY_READ or " ".join(word.text for word in words) in _VERSIONS:
        return True
    certain = not any(word.is_glob for word in words)  # nobody says where a pattern is expanded
    return certain and knows(name) and use_problem(words, Path("/"), Sight.anywhere()) is None


def knows(name: str) -> bool:
    return name in COMMANDS or name in _SPECIAL


# Commands that edit files, for `acceptEdits`: options without a value, all of whose operands are files.
EDITORS: Mapping[str, frozenset[str]] = {
    "mkdir": frozenset("-p -v -pv -vp --parents --verbose".split()),
    "touch": frozenset("-a -c -m --no-create".split()),
    "rm": frozenset("-f -r -R -rf -fr -v -d -rv --force --recursive --verbose".split()),
    "mv": frozenset("-f -n -v -T -u --force --no-clobber --verbose".split()),
    "cp": frozenset("-f -n -v -T -u -r -R -p -a -rp -rf --force --no-clobber --verbose --recursive --archive".split()),
    "sed": frozenset("-i -E -r -n -Ei -ni --in-place --quiet --regexp-extended".split()) - {"-Ei", "-ni"},
}


def edit_problem(part: Part, place: Path, sight: Sight) -> str | None:
    """Why one of `EDITORS` may reach outside, or write what grants rights."""
    allowed = EDITORS.get(part.words[0].text)
    if allowed is None or part.words[0].is_glob:
        return f"`{part.words[0].text}` is not one of {', '.join(EDITORS)}"
    judge = _Judge(part.words, place, sight)
    words = list(part.words[1:])
    while words and words[0].text.startswith("-") and words[0].text != "--":
        if words[0].is_glob or words.pop(0).text not in allowed:
            return "an option that is not known to edit only what is named"
    if words and words[0].text == "--":
        words.pop(0)
    if part.words[0].text == "sed":
        if not words or words[0].is_glob or not _SED.fullmatch(words.pop(0).text):
            return "a script that is not known to edit only what is named"
    if any(word.text.startswith("-") for word in words):
        return "an option behind an operand"
    for word in words:
        if problem := judge.file(word, Kind.LINKED_TREE) or _rights_problem(word, place, sight):
            return problem
    return _landing_problem(part.words[0].text, words, place, sight)


def _rights_problem(word: Plain, place: Path, sight: Sight) -> str | None:
    names = (word.text, *((word.names(place) or ()) if word.is_glob else ()))
    for name in names:
        path = place / name
        if grants_rights(path, sight.places.roots, sight.places.home) or _holds_rights(path, sight):
            return f"{name} holds what grants rights"
        if any(resolve(path) == resolve(root) for root in sight.places.roots):
            return f"{name} is a working directory itself"
    return None


def _holds_rights(path: Path, sight: Sight) -> bool:
    found = (Path(where, name) for where, directories, files in os.walk(path) for name in (*directories, *files))
    for number, one in enumerate(found):
        if number >= MAX_FILES or grants_rights(one, sight.places.roots, sight.places.home):
            return True
    return False


def _landing_problem(name: str, words: Sequence[Plain], place: Path, sight: Sight) -> str | None:
    """`cp a d` writes `d/a` where `d` is a directory, and through a link that is called so."""
    if name not in ("cp", "mv") or len(words) < 2:
        return None
    if any(word.is_glob for word in words):
        return "a pattern that nobody knows where it lands"
    for word in words[:-1]:
        landing = place / words[-1].text / os.path.basename(word.text.rstrip("/"))
        if problem := sight.file(landing):
            return problem
        if grants_rights(landing, sight.places.roots, sight.places.home):
            return f"{landing} grants rights"
    return None


def part_problem(part: Part, places: tuple[Path, ...], sight: Sight) -> str | None:
    """Why one part is not proved harmless in one of the directories it may stand in."""
    if len(places) > MAX_PLACES:
        return "nobody knows where it stands"
    for place in places:
        if not sight.inside(place):
            return f"{place} lies outside the working directories"
        judge = _Judge(part.words, place, sight)
        problem = judge.problem() or next((p for word in part.reads if (p := judge.file(word, Kind.FILE))), None)
        if problem:
            return problem
    return None


def use_problem(words: tuple[Plain, ...], place: Path, sight: Sight) -> str | None:
    """Why a command that `knows` has is not used harmlessly, whoever's program it is."""
    judge, special = _Judge(words, place, sight), _SPECIAL.get(words[0].text)
    return special(judge) if special else judge.against(COMMANDS[words[0].text], words[1:])


class _Judge(Struct):
    words: tuple[Plain, ...]
    place: Path
    sight: Sight
    names: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def problem(self) -> str | None:
        name = self.words[0].text
        if self.words[0].is_glob or self.words[0].computed:
            return "only the shell knows what it runs"
        if " ".join(word.text for word in self.words) in _VERSIONS and not any(word.is_glob for word in self.words):
            return self._is_own_program(name)
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self)
        spec = COMMANDS.get(name)
        if spec is None:
            return f"`{name}` is not known to be harmless"
        return self._is_own_program(name) or self.against(spec, self.words[1:])

    def _is_own_program(self, name: str) -> str | None:
        """A program of that name that lies in the project is the project's, not the system's."""
        found = shutil.which(name)
        return f"`{name}` is a program of the project" if found and self.sight.inside(Path(found)) else None

    def file(self, word: Plain, kind: Kind) -> str | None:
        """Why a word may not be read as a file."""
        if word.computed or not word.text:
            return "a file that only the shell knows"
        names: tuple[str, ...] = (word.text,)
        if word.is_glob:
            found = word.names(self.place)
            if found is None:
                return f"`{word.text}` may be too many files"
            names += found
        if any(name.startswith("-") and name != "-" for name in names) and not (word.text.startswith("-") and not word.is_glob):
            return f"`{word.text}` may be an option"
        if word.text == "-" and not word.is_glob:
            return None
        return next((p for name in names if (p := self._named(name, kind))), None)

    def _named(self, name: str, kind: Kind) -> str | None:
        if name in ("/dev/null", "/dev/stdin"):
            return None
        path = self.place / name
        problem = self.sight.file(path)
        if problem or kind is Kind.FILE:
            return problem
        return self.sight.tree(path, follow=kind is Kind.LINKED_TREE, names=kind is Kind.LISTING)

    def value(self, word: Plain, kind: Kind, text: str | None = None) -> str | None:
        """Why a word, or `text` as a part of it, is not of this kind."""
        if kind in (Kind.FILE, Kind.LISTING, Kind.TREE, Kind.LINKED_TREE):
            return self.file(word, kind) if text is None else "a file inside an option"
        if word.is_glob and self._matches_something(word):
            return f"`{word.text}` stands for files"
        if kind is Kind.TEXT:
            return None
        plain = word.text if text is None else text
        if kind is Kind.FILTER:
            return None if _reads_its_input(plain) else f"the filter `{plain}` is not known to be harmless"
        return None if not word.computed and _KINDS[kind].fullmatch(plain) else f"`{plain}` is not expected there"

    def _matches_something(self, word: Plain) -> bool:
        found = word.names(self.place)
        return found is None or bool(found)

    def against(self, spec: Spec, words: Sequence[Plain]) -> str | None:
        given: set[str] = set()
        operands: list[Plain] = []
        index, options = 0, True
        while index < len(words):
            word, text = words[index], words[index].text
            index += 1
            if not options or not text.startswith("-") or text == "-":
                operands.append(word)
                continue
            if (word.is_glob and self._matches_something(word)) or word.computed:
                return f"`{text}` is not certain"
            if text == "--":
                options = False
                continue
            taken = self._long(spec, word, words[index:], given) if text.startswith("--") else None
            taken = taken if text.startswith("--") else self._short(spec, word, words[index:], given)
            if isinstance(taken, str):
                return taken
            index += taken or 0
        return self._operands(spec, operands, given)

    def _long(self, spec: Spec, word: Plain, rest: Sequence[Plain], given: set[str]) -> int | str:
        name, equals, value = word.text.partition("=")
        given.add(name)
        if equals:
            kind = spec.long_valued.get(name)
            if kind is None:
                return f"the option `{name}` is not known to be harmless"
            return self.value(word, kind, value) or 0
        if name in spec.long:
            return 0
        if name in spec.long_valued and rest:
            return self.value(rest[0], spec.long_valued[name]) or 1
        return f"the option `{name}` is not known to be harmless"

    def _short(self, spec: Spec, word: Plain, rest: Sequence[Plain], given: set[str]) -> int | str:
        letters = word.text[1:]
        if spec.number and letters.isdecimal():
            return 0
        for position, letter in enumerate(letters):
            given.add(f"-{letter}")
            kind = spec.valued.get(letter)
            if kind is not None:
                if spec.apart and letters[position + 1 :]:
                    return f"`{word.text}` is read differently by different versions"
                if attached := letters[position + 1 :]:
                    return self.value(word, kind, attached) or 0
                return (self.value(rest[0], kind) or 1) if rest else "a value is missing"
            if letter not in spec.flags:
                return f"the option `-{letter}` is not known to be harmless"
        return 0

    def _operands(self, spec: Spec, operands: list[Plain], given: set[str]) -> str | None:
        if spec.first is not None and not (spec.instead & given):
            if not operands:
                return "its pattern is missing"
            if problem := self.value(operands[0], spec.first):
                return problem
            operands = operands[1:]
        elif not spec.least <= len(operands) <= spec.most:
            return "it has another number of operands than expected"
        kind = spec.operands
        if kind is None:
            return "it takes no operands" if operands else None
        if spec.deeper & given:
            kind = Kind.LINKED_TREE if spec.follows & given else spec.depth
        if not operands and (spec.alone or spec.deeper & given):
            return self._named(".", kind)
        return next((p for word in operands if (p := self.value(word, kind))), None)

    # commands with a grammar of their own

    def texts(self) -> str | None:
        for word in self.words[1:]:
            if word.is_glob and (problem := self.file(word, Kind.FILE)) and self._matches_something(word):
                return problem
        return None

    def printf(self) -> str | None:
        words = self.words[1:]
        if not words or any(word.is_glob for word in words) or words[0].computed:
            return "its format is not known"
        text = words[0].text
        rest = re.sub(r"%[-+ 0#]*\d*(\.\d+)?[sdiuxXoceEfgGbq%]", "", text)
        return f"the format `{text}` is not known to be harmless" if text.startswith("-") or "%" in rest else None

    def cd(self) -> str | None:
        if len(self.words) != 2 or self.words[1].is_glob or self.words[1].computed or self.words[1].text.startswith("-"):
            return "nobody knows where it leads"
        text = self.words[1].text
        if not text:
            return "nobody knows where it leads"
        written = os.path.normpath(self.place / text)
        if ".." in text.split("/") and (
            os.path.realpath(written) != os.path.realpath(self.place / text) or not _linkless(self.place)
        ):
            return "it leads elsewhere than it says"
        return self.sight.file(Path(written))

    def test(self) -> str | None:
        words = list(self.words[1:])
        if self.words[0].text == "[":
            if not words or words.pop().text != "]":
                return "its end is missing"
        if any(word.is_glob for word in words):
            return "a pattern in a test"
        if words and words[0].text == "!":
            words = words[1:]
        if len(words) == 2 and words[0].text in ("-n", "-z"):
            return None
        if len(words) == 2 and re.fullmatch(r"-[abcdefghLkprsSuwxOGN]", words[0].text):
            return self.file(words[1], Kind.FILE)
        if len(words) == 3 and words[1].text in ("=", "==", "!="):
            return None
        if len(words) == 3 and words[1].text in ("-eq", "-ne", "-lt", "-le", "-gt", "-ge"):
            ok = all(re.fullmatch(r"-?\d+", word.text) for word in (words[0], words[2]))
            return None if ok else "a test that evaluates a text"
        return "a test that is not known to be harmless"

    def sed(self) -> str | None:
        """Scripts of addresses with `p`, `d`, `q`, and `s` without a flag that writes or runs something."""
        words = list(self.words[1:])
        while words and re.fullmatch(r"-[nErsuz]+|--quiet|--silent|--regexp-extended|--separate|--null-data", words[0].text):
            words.pop(0)
        while len(words) > 3 and words[0].text == words[2].text == "-e" and self._is_script(words[1], _SED):
            del words[:2]
        if words and words[0].text == "-e":
            words.pop(0)
        return self._program(words, _SED, "sed")

    def awk(self) -> str | None:
        """Programs that only print fields."""
        words = list(self.words[1:])
        while words and re.match("-F", words[0].text) and not words[0].is_glob:
            if words.pop(0).text == "-F" and words:
                words.pop(0)
        return self._program(words, _AWK_READS if self.sight.everywhere else _AWK, "awk")

    def _is_script(self, word: Plain, grammar: re.Pattern[str]) -> bool:
        return not word.is_glob and not word.computed and grammar.fullmatch(word.text) is not None

    def _program(self, words: list[Plain], grammar: re.Pattern[str], name: str) -> str | None:
        if not words or any(word.text.startswith("-") for word in words):
            return f"an option of `{name}` that is not known to be harmless"
        if not self._is_script(words[0], grammar):
            return f"the script of `{name}` is not known to be harmless"
        return next((p for word in words[1:] if (p := self.file(word, Kind.FILE))), None)

    def type(self) -> str | None:
        """Where a program lies."""
        named = all(re.fullmatch(r"[\w.+][\w.+-]*", word.text, re.ASCII) and not word.is_glob for word in self.words[1:])
        return None if len(self.words) > 1 and named else "a name that is none"

    def find(self) -> str | None:
        words = list(self.words[1:])
        follow = Kind.LISTING
        while words and words[0].text in ("-L", "-H", "-P"):
            follow = Kind.LINKED_TREE if words.pop(0).text != "-P" else follow
        starts = 0
        while starts < len(words) and not re.match(r"[-!()]", words[starts].text):
            starts += 1
        for word in words[:starts]:
            if problem := self.file(word, follow):
                return problem
        if not starts and (problem := self._named(".", follow)):
            return problem
        return self._expression(words[starts:])

    def _expression(self, words: list[Plain]) -> str | None:
        while words:
            word = words.pop(0)
            if word.is_glob or word.computed:
                return "a word of `find` that is not certain"
            if word.text in _FIND_PLAIN:
                continue
            kind = _FIND_VALUED.get(word.text)
            if kind is None or not words:
                return f"`find {word.text}` is not known to be harmless"
            if words[0].is_glob:
                return "a pattern that the shell may expand"
            if problem := self.value(words.pop(0), kind):
                return problem
        return None

    def git(self) -> str | None:
        if any(word.is_glob or word.computed for word in self.words):
            return "a word of `git` that only the shell knows"
        return git_is_harmless([word.text for word in self.words[1:]], self.place, self.sight)


_BRACKETS = r"\[\^?\]?(?:\[:\w+:\]|[^\]\[/\\\n%s])*\]"


def _substitute(mark: str) -> str:
    """`s/…/…/flags`: where the parts end is certain, and no flag writes (`w`) or runs (`e`) anything."""
    mark = re.escape(mark)
    found = rf"(?:[^{mark}\\\n\[]|\\[^\n]|{_BRACKETS % mark})*"
    return rf"s{mark}{found}{mark}(?:[^{mark}\\\n]|\\[^\n])*{mark}[gIipMm0-9]*"


_ADDRESS = rf"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n\[]|\\[^\n]|{_BRACKETS % '/'})+/I?)"
_SED_COMMAND = (
    rf"[ \t]*(?:{_ADDRESS}(?:,[ \t]*(?:{_ADDRESS}|[+~]\d+))?)?[ \t]*!?[ \t]*"
    rf"(?:[pdDPgGhHxnNl=]|[qQ]\d*|\{{|{'|'.join(map(_substitute, '/|#,@:!'))})?[ \t]*\}}?[ \t]*"
)
_SED = re.compile(rf"{_SED_COMMAND}(?:(?:[;\n]|(?<=\{{)|(?<=\}})){_SED_COMMAND})*")
_AWK_VALUE = r'(?:\$(?:\d+|NF|\(NF-\d+\))|NF|NR|FNR|"[\w .:,=()/-]*")'
_AWK_TEST = r"(?:/[\w .:=#<>^$-]+/|(?:NR|NF|FNR|\$\d+) ?(?:==|!=|>=|<=|>|<) ?(?:\d+|\"[\w .-]*\"))"
_AWK = re.compile(
    rf"(?:{_AWK_TEST}(?: ?(?:&&|\|\|) ?{_AWK_TEST})*)? ?(?:\{{ ?print(?: {_AWK_VALUE}(?:(?:, ?| ){_AWK_VALUE})*)? ?;? ?\}})?"
    rf"|!seen\[\$\d+\]\+\+|\{{ ?s(?:um)? ?\+= ?\$\d+ ?;? ?\}} ?END ?\{{ ?print s(?:um)? ?\}}"
)
# Under a rule: what writes, runs or connects needs one of these signs or words.
_AWK_READS = re.compile(r"(?!.*(?:[>|@]|system|getline|close))[^\0]*", re.DOTALL)
_JQ_WORDS = frozenset(
    """length keys keys_unsorted map select sort sort_by group_by unique unique_by min max min_by max_by add any all has in
    to_entries from_entries with_entries if then elif else end and or not as reduce foreach empty error null true false type
    tostring tonumber tojson fromjson join split test contains inside startswith endswith ltrimstr rtrimstr ascii_downcase
    ascii_upcase first last nth limit range flatten reverse paths leaf_paths getpath values arrays objects strings numbers
    recurse del to_array floor round csv tsv html uri base64 text json""".split()
)


def _reads_its_input(program: str) -> bool:
    """Every word of a jq program is a field, a string, a key, a variable or a function that reads nothing."""
    rest = re.sub(r'"(?:[^"\\]|\\[^(])*"', " 0 ", program)
    rest = re.sub(r"\.[A-Za-z_]\w*|\$[a-z]\w*", " 0 ", rest)
    rest = re.sub(r"[A-Za-z_]\w*(?=\s*[,:}])", " 0 ", rest)
    words = re.findall(r"[A-Za-z_$][\w$]*", rest)
    return "\\" not in rest and '"' not in rest and "::" not in rest and all(word in _JQ_WORDS for word in words)


_FIND_PLAIN = frozenset(
    """! ( ) -a -o -and -or -not -print -print0 -prune -empty -depth -xdev -mount -readable -writable -executable -true
    -false -daystart -noleaf -ls -quit -nouser -nogroup -d -warn -nowarn -ignore_readdir_race ,""".split()
)
_FIND_VALUED: Mapping[str, Kind] = {
    **dict.fromkeys("-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -lname -printf -newermt".split(), Kind.TEXT),
    **dict.fromkeys("-type -xtype -user -group -perm -size -fstype".split(), Kind.NAME),
    **dict.fromkeys("-maxdepth -mindepth -mtime -mmin -atime -amin -ctime -cmin -links -inum -uid -gid -used".split(), Kind.NUMBER),
    **dict.fromkeys("-newer -anewer -cnewer -samefile".split(), Kind.FILE),
}  # fmt: skip
_SPECIAL: Mapping[str, Callable[[_Judge], str | None]] = {
    "echo": _Judge.texts, "printf": _Judge.printf, "cd": _Judge.cd, "test": _Judge.test, "[": _Judge.test, "sed": _Judge.sed, "type": _Judge.type, "find": _Judge.find, "awk": _Judge.awk, "git": _Judge.git,
}  # fmt: skip


def _linkless(path: Path) -> bool:
    return os.path.realpath(path) == os.path.normpath(path)
