"""Set up `.venv`: the program in editable form and everything it needs, at the versions of `constraints.txt`.

Rules of this file:

1. Standard library only, and nothing but Python 3.11, git and make is taken for granted. uv is used where it is.
2. A way that fails is not the end: uv → pip of the venv → another pip filling the venv. Only when all are gone is there
   one line that says what to install.
3. The stamp is written last. What was broken off half-way starts again, over the remains.

Usage: bootstrap.py VENV STAMP
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
NO_WAY = "python3-venv, pip and uv are all missing: `apt-get install python3-venv` as root, or install uv, then run make again"


class SetupFailed(Exception):
    """The message is the one line a person needs."""


def run(command: Sequence[str | Path], *, quiet: bool = False) -> bool:
    """Whether the command ended well; its output goes to stderr, or nowhere when `quiet`."""
    output = subprocess.DEVNULL if quiet else sys.stderr
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}  # a build back end's page of advice is not for this person
    argv = [str(part) for part in command]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT, env=environment)
    except OSError:
        return False
    return done.returncode == 0


def has_ensurepip() -> bool:
    """Debian splits it off into python3-venv."""
    return run([sys.executable, "-c", "import ensurepip, venv"], quiet=True)


def install_venv_package() -> bool:
    """Only root can, and only where apt is."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", f"python3.{sys.version_info.minor}-venv"]
    if not run(install) and not (run(["apt-get", "update", "-q"]) and run(install)):
        return False
    return has_ensurepip()


def works(venv: Path) -> bool:
    """Whether there is a venv whose interpreter still runs, and is new enough."""
    check = "import sys; sys.exit(sys.version_info < (3, 11) or sys.prefix == sys.base_prefix)"
    return run([venv / "bin/python", "-c", check], quiet=True)


def make_venv(venv: Path, *, pip: bool) -> None:
    options = ["--clear"] + ([] if pip else ["--without-pip"])
    if not run([sys.executable, "-m", "venv", *options, venv]):
        raise SetupFailed(f"`{sys.executable} -m venv {venv}` failed; its words stand above")


def install(installer: Sequence[str | Path]) -> bool:
    """The build tool first, at its pinned version, so that nothing is built with what an index serves today."""
    pinned = [*installer, "-c", CONSTRAINTS]
    return run([*pinned, "setuptools"]) and run([*pinned, "--no-build-isolation", "-e", ROOT, "--group", "dev"])


def with_uv(venv: Path) -> bool:
    uv = shutil.which("uv")
    if not uv:
        return False
    if not works(venv):
        make_venv(venv, pip=False)
    if install([uv, "pip", "install", "--quiet", "--python", venv / "bin/python"]):
        return True
    print("setup: uv failed, going on with pip", file=sys.stderr)
    return False


def with_own_pip(venv: Path) -> bool:
    """The venv's own pip, raised to the pinned one: an old pip knows no dependency groups."""
    python = venv / "bin/python"
    if not (works(venv) and run([python, "-m", "pip", "--version"], quiet=True)):
        if not (has_ensurepip() or install_venv_package()):
            return False
        make_venv(venv, pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return run([*pip, "-c", CONSTRAINTS, "pip"]) and install(pip)


def with_other_pip(venv: Path) -> bool:
    """A pip from elsewhere, the system's or Debian's wheel of it, brings the pinned pip into a venv made without."""
    with tempfile.TemporaryDirectory() as scratch:
        pip = system_pip() or debian_pip(Path(scratch))
        if pip is None:
            return False
        make_venv(venv, pip=False)
        site = subprocess.check_output(
            [venv / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
        if not run([*pip, "install", "--quiet", "--target", site, "-c", CONSTRAINTS, "pip"]):
            return False
    return with_own_pip(venv)


def system_pip() -> list[str | Path] | None:
    pip = [sys.executable, "-m", "pip"]
    return list(pip) if run([*pip, "--version"], quiet=True) else None


def debian_pip(scratch: Path) -> list[str | Path] | None:
    """Anyone may download and unpack a package, also who may not install it."""
    try:
        subprocess.run(["apt-get", "download", "-q", "python3-pip-whl"], cwd=scratch, check=True, stdout=sys.stderr)
        package = next(scratch.glob("python3-pip-whl*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, scratch], check=True)
        wheel = next(scratch.glob("usr/share/python-wheels/pip-*.whl"))
    except (OSError, subprocess.CalledProcessError, StopIteration):
        return None
    return [sys.executable, wheel / "pip"]


def main(venv: Path, stamp: Path) -> None:
    if sys.version_info < (3, 11):
        raise SetupFailed(f"Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]} (make PYTHON=…)")
    print(f"setting up {venv}: once, some 15 to 60 seconds", file=sys.stderr, flush=True)
    stamp.unlink(missing_ok=True)
    if not (with_uv(venv) or with_own_pip(venv) or with_other_pip(venv)):
        reason = "the packages could not be installed; pip's words stand above" if has_ensurepip() else NO_WAY
        raise SetupFailed(reason)
    stamp.touch()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
    except SetupFailed as failure:
        sys.exit(f"setup: {failure}")
