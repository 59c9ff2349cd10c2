"""Whether a completed report says anything at all.

A worker that ends with "See above." or "I will now look at the tests." counts as completed, and its reader has nothing.
The rule is small and would rather miss one than blame a real answer: a short text, in English, of which every sentence is
a courtesy, a pointer to what its reader never saw, or a promise that tells nothing beside itself.
"""

from __future__ import annotations

import re

LONGEST = 300  # characters; who writes more says something

_SENTENCE = re.compile(r"(?<=[.!?…])\s+|\n+")
_ADDED = re.compile(r"^\[.*\]$", re.MULTILINE)  # lines that this program put behind a report
_COURTESY = re.compile(
    r"(?:ok(?:ay)?|sure|understood|great|alright|all right|perfect|thanks|thank you|got it|done)[.!,]*", re.IGNORECASE
)
_REPORT = "(?:messages?|reports?|answers?|responses?|summary|output|findings|results?|details?)"
_ELSEWHERE = re.compile(
    rf"""(?:please[ ])?
    (?: (?:see|refer[ ]to|as)[ ] (?:(?:noted|stated|described|reported|mentioned|shown|summari[sz]ed|outlined)[ ])?
        (?:(?:the|my)[ ])? (?:above|previously|(?:previous|earlier|last|prior)[ ]{_REPORT}|{_REPORT}[ ]above|above[ ]{_REPORT})
        (?:[ ]for[ ](?:(?:the|my)[ ])?(?:(?:full|final|complete|detailed)[ ])?{_REPORT})?
    |   (?:the|my|all)[ ] (?:(?:full|final|complete|detailed)[ ])? {_REPORT}[ ](?:is|are|was|were)[ ]
        (?:(?:given|stated|listed|provided)[ ])? above
    |   (?:i[ ]have[ ])?nothing[ ](?:more|further|else)[ ]to[ ](?:add|report|say)
    )[.!]*""",
    re.IGNORECASE | re.VERBOSE,
)
_DOING = (
    "analy[sz](?:e|ing)|begin|check(?:ing)?|continue|creat(?:e|ing)|examin(?:e|ing)|explor(?:e|ing)|find|fix(?:ing)?|gather"
    "|implement(?:ing)?|inspect(?:ing)?|investigat(?:e|ing)|look(?:ing)?|open(?:ing)?|prepar(?:e|ing)|proceed|read(?:ing)?|report"
    "|review(?:ing)?|run(?:ning)?|scan|search(?:ing)?|start|summari[sz]e|test|try|update|verify|wait|write"
)
_PROMISE = re.compile(
    rf"""(?:(?:now|next|first|then|so|ok(?:ay)?|great|sure|alright),?[ ])*
    (?:let[ ]me|let['’]s|i['’]ll|i[ ]will|i['’]m[ ]going[ ]to|i[ ]am[ ]going[ ]to|i[ ]need[ ]to)[ ]
    (?:(?:now|next|first|then|also|just|quickly|start|begin|go|proceed|continue|by|to|and|ahead|on|with)[ ])*
    (?:{_DOING})\b.*""",
    re.IGNORECASE | re.VERBOSE,
)
_TELLS = re.compile(r"\b(?:because|since|that|found|unless|if|but)\b|:[ ]*\S|[;—–]| - ", re.IGNORECASE)  # more than its promise


def says_nothing(report: str) -> str | None:
    """What `report` consists of, if it holds nothing; None for everything that may be an answer, however short."""
    text = _ADDED.sub("", report).strip().strip("*_ ")
    if not text or len(text) > LONGEST:
        return None
    said = [part for part in map(str.strip, _SENTENCE.split(text)) if part and not _COURTESY.fullmatch(part)]
    if said and all(_ELSEWHERE.fullmatch(part) for part in said):
        return "it only points to something that is not in it"
    if said and all(_PROMISE.fullmatch(part) and not _TELLS.search(part) for part in said):
        return "it only announces what it would do"
    return None
