"""After a command: what appeared where rights come from does not stay.

A place that exists can be kept from writing; one that does not exist yet (`.envrc`, `.git/hooks/pre-commit`) cannot, in a
directory that may be written. So the places are looked at again when the command has ended, and what is new there, or is
another file than before, is moved aside, out of the project, and named. Not deleted: it may be work.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from worker_agent.tools.confinement.survey import Rights, RightsWatch, TooMuch


def set_aside(watch: RightsWatch, before: Rights, directory: Path) -> tuple[str, ...]:
    """Move what grants rights and was not there `before` below `directory`; what was done, a sentence each."""
    try:
        now = watch.look()
    except TooMuch as error:
        return (f"It could not be looked through afterwards for files that grant rights: {error}.",)
    notes = []
    for place in sorted(now.frozen - before.frozen, key=lambda place: place.path):
        if os.path.lexists(place.path):  # else it went with the directory above it
            notes.append(_moved(place.path, directory))
    return tuple(notes)


def _moved(path: str, directory: Path) -> str:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = _free(directory / path.strip("/").replace("/", "__"))
        shutil.move(path, target)
    except OSError as error:
        return f"{path} grants rights and could not be set aside: {error.strerror or error}."
    return (
        f"{path} grants rights (it would run later, or change what may run), which a confined command must not give: it was "
        f"moved to {target}. Write it with Write or Edit, which asks a person."
    )


def _free(path: Path) -> Path:
    number = 1
    target = path
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}.{number}")
    return target
