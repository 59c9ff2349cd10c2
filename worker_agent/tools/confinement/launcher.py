"""Confine this very process as a plan says, then become the command. Run as `python -I -S launcher.py PLAN_FD -- ARGV…`.

Rules:

1. It imports nothing of ours and little else: it starts once for each command. Everything needed is at hand before the
   first restriction; after the last one there is only `execv` with an absolute path.
2. It fails closed: a step that does not work ends it with exit code 126 and one line; the command never starts.
3. The plan is a marshalled dict on a descriptor (`native.py` writes it); all paths are absolute and resolved.

The order of steps: namespaces → everything read-only → own `/tmp` and `/dev/shm` → masks, outermost first → what deny rules
name → loopback up → into the working directory → capabilities gone → Landlock → seccomp. A plan that is not `closed` (GUARD)
only masks.

A process that is root inside its user namespace could take masks away again: the capabilities are dropped for good, a further
user namespace gets these mounts locked, and Landlock forbids any change of mounts at all.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import platform
import struct
import sys
from typing import Any, NamedTuple

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
AT_RECURSIVE, AT_FDCWD, MOUNT_ATTR_RDONLY = 0x8000, -100, 1
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOVE_MOUNT_F_EMPTY_PATH = 1, os.O_CLOEXEC, 4
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECCOMP = 38, 23, 24, 22
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442
SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446
# dac_read_search, sys_module, sys_rawio, sys_chroot, sys_ptrace, sys_admin, mknod, perfmon, bpf, checkpoint_restore: with any of
# these a mask could be passed by.
UNMASKING = (2, 16, 17, 18, 19, 21, 27, 38, 39, 40)
CAP_VERSION = 0x20080522

# Landlock's file rights, by the version that brought them: 13 of the first, then refer, truncate, device ioctls.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READING = EXECUTE | READ_FILE | READ_DIR
CONNECTING = 3  # TCP: bind and connect
SCOPES = 3  # abstract sockets, signals
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")

libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """A step of the confinement did not work here."""


def check(result: int, what: str) -> int:
    if result < 0:
        raise Refused(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


# ── namespaces and mounts ────────────────────────────────────────────────────────────────────────────────────────────


def enter_namespaces(network: bool) -> bool:
    """Own mounts, and no network but a loopback of its own unless `network`. Whether a user namespace was needed."""
    wanted = CLONE_NEWNS | (0 if network else CLONE_NEWNET)
    if os.geteuid() == 0 and libc.unshare(wanted) == 0:
        made = False
    else:
        uid, gid = os.geteuid(), os.getegid()
        check(libc.unshare(wanted | CLONE_NEWUSER), "namespaces")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        made = True
    check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    return made


def bind(source: str, target: str) -> None:
    check(libc.mount(os.fsencode(source), os.fsencode(target), None, MS_BIND | MS_REC, None), f"bind {target}")


def set_read_only(path: str, wanted: bool) -> None:
    """All mounts at `path` and below. Of this process's own mounts only: nobody else sees it."""
    attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY if wanted else 0, 0 if wanted else MOUNT_ATTR_RDONLY, 0, 0)
    done = libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), AT_RECURSIVE, attributes, len(attributes))
    check(done, f"{'read-only' if wanted else 'writable'} {path}")


def mount_tmpfs(path: str, options: str) -> None:
    done = libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", MS_NOSUID | MS_NODEV, options.encode())
    check(done, f"empty {path}")


def own_terminals() -> None:
    """Pseudo terminals of its own, so that nobody else's can be written to. Where that is not to be had, none."""
    options = b"newinstance,ptmxmode=0666,mode=620"
    if os.path.isdir("/dev/pts") and libc.mount(b"devpts", b"/dev/pts", b"devpts", MS_NOSUID, options) == 0:
        if not os.path.islink("/dev/ptmx"):
            bind("/dev/pts/ptmx", "/dev/ptmx")
    elif os.path.isdir("/dev/pts"):
        mount_tmpfs("/dev/pts", "mode=555,size=0")


def copied(path: str) -> int:
    """A copy of the mounts at `path`, as they are before anything is laid over them or made read-only."""
    done = libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE)
    return check(done, f"copy {path}")


def place(copy: int, path: str) -> None:
    done = libc.syscall(SYS_MOVE_MOUNT, copy, b"", AT_FDCWD, os.fsencode(path), MOVE_MOUNT_F_EMPTY_PATH)
    check(done, f"place {path}")
    os.close(copy)


def mask(plan: dict[str, Any]) -> None:
    """Take the steps of the plan, in its order."""
    copies = {path: copied(path) for how, path in plan["steps"] if how in ("show", "write")}
    if plan["closed"]:
        set_read_only("/", True)
        own_terminals()
    for path in plan["empty"]:
        mount_tmpfs(path, "mode=1777")
    emptied = [path + "/" for path in plan["empty"]]
    hidden = []
    for how, path in plan["steps"]:
        if how in ("show", "write"):
            if any(path.startswith(outer) for outer in emptied):
                os.makedirs(path, exist_ok=True)
            place(copies[path], path)
            if how == "show":
                set_read_only(path, True)
        elif not os.path.lexists(path):
            continue  # gone, or covered already
        elif how == "hide":
            hide(path)
            emptied.append(path + "/")
            hidden.append(path)
        else:
            bind(path, path)
            if how == "freeze":
                set_read_only(path, True)
    for path in hidden:
        if os.path.isdir(path):  # only now: places were made in it for what is shown below
            close_hidden(path)


def hide(path: str) -> None:
    if os.path.isdir(path):
        mount_tmpfs(path, "mode=755,size=64k")
    else:
        bind("/dev/null", path)


def close_hidden(path: str) -> None:
    """The mount at `path` alone: what is bound below it keeps what it has."""
    attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    check(libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), 0, attributes, len(attributes)), f"close {path}")


def loopback_up() -> None:
    """A network namespace begins with its loopback down; servers of tests need it."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def drop_capabilities(kept: bool) -> None:
    """All of them for good; `kept`: all but those that could undo a mask."""
    last = next(cap for cap in range(63, -1, -1) if libc.prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0)
    for cap in UNMASKING if kept else range(last + 1):
        if cap <= last and libc.prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1:
            check(libc.prctl(PR_CAPBSET_DROP, cap, 0, 0, 0), "capabilities")
    header = struct.pack("Ii", CAP_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    if kept:
        check(libc.capget(header, data), "capabilities")
        low, high = ~sum(1 << c for c in UNMASKING if c < 32), ~sum(1 << (c - 32) for c in UNMASKING if c >= 32)
        words = struct.unpack("6I", data.raw)
        data = ctypes.create_string_buffer(
            struct.pack("6I", *((word & (low if i < 3 else high)) & 0xFFFFFFFF for i, word in enumerate(words))), 24
        )
    check(libc.capset(header, data), "capabilities")


# ── Landlock and seccomp ─────────────────────────────────────────────────────────────────────────────────────────────


def landlock(plan: dict[str, Any]) -> None:
    abi = check(libc.syscall(SYS_CREATE_RULESET, None, 0, 1), "Landlock")
    known = RIGHTS[min(abi, 5)]
    nets = CONNECTING if abi >= 4 and not plan["network"] and not plan["namespaces"] else 0
    scopes = SCOPES if abi >= 6 else 0
    attributes = struct.pack("QQQ", known, nets, scopes)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = check(libc.syscall(SYS_CREATE_RULESET, attributes, len(attributes), 0), "Landlock")
    for path in plan["readable"]:
        grant(ruleset, path, READING & known)
    for path in plan["listed"]:
        grant(ruleset, path, READ_DIR)
    for path in plan["granted"]:
        grant(ruleset, path, known & ~IOCTL_DEV)
    for name in DEVICES:
        grant(ruleset, f"/dev/{name}", known)
    check(libc.syscall(SYS_RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def grant(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it is not there, or not for us: nothing to allow
    try:
        rights &= -1 if os.path.isdir(path) else OF_FILES
        check(libc.syscall(SYS_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0), f"Landlock {path}")
    finally:
        os.close(fd)


class Machine(NamedTuple):
    """Numbers of system calls. `metadata` changes modes, owners, times and attributes, which Landlock does not hold."""

    audit: int
    socket: int
    io_uring_setup: int
    metadata: tuple[int, ...]


MACHINES = {
    "x86_64": Machine(
        0xC000003E, 41, 425,
        (90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280, 452, 463, 466),
    ),
    "aarch64": Machine(0xC00000B7, 198, 425, (5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88, 452, 463, 466)),
}  # fmt: skip
REFUSE, ALLOW = 0x0005000D, 0x7FFF0000  # with EACCES
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
X32 = 0x40000000  # the x32 calls of x86_64


def forbid_calls(sockets: str, metadata: bool) -> None:
    """`sockets`: "none" can be made (`socketpair` still can), "local" ones of Unix, or "any". `metadata`: it cannot be
    changed. Calls of another architecture fail, so that none of them goes past the filter."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise Refused(f"no filter of system calls for {platform.machine()}")
    refused = [*(machine.metadata if metadata else ()), *(() if sockets == "any" else (machine.io_uring_setup,))]
    program = [
        (LOAD, 0, 0, 4), (EQUAL, 1, 0, machine.audit), (RETURN, 0, 0, REFUSE),
        (LOAD, 0, 0, 0), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, REFUSE),
    ]  # fmt: skip
    for number in refused:
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    if sockets != "any":
        family = socket_family(sockets)
        program += [(EQUAL, 0, 3, machine.socket), (LOAD, 0, 0, 16), (EQUAL, 1, 0, family), (RETURN, 0, 0, REFUSE)]
    program += [(RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    check(libc.prctl(PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")


def socket_family(sockets: str) -> int:
    return 1 if sockets == "local" else 0xFFFFFFFF


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


def confine(plan: dict[str, Any]) -> None:
    if plan["namespaces"]:
        nested = enter_namespaces(plan["network"])
        mask(plan)
        if not plan["network"]:
            loopback_up()
    os.chdir(plan["cwd"])
    if plan["namespaces"]:
        drop_capabilities(kept=not plan["closed"] and not nested)
    if plan["closed"]:
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
        landlock(plan)
    if plan["sockets"] != "any" or plan["metadata"]:
        forbid_calls(plan["sockets"], plan["metadata"])


def main(argv: list[str]) -> None:
    try:
        with open(int(argv[1]), "rb") as file:
            plan = marshal.load(file)
        confine(plan)
        os.execv(argv[3], argv[3:])
    except (Refused, OSError) as error:
        sys.stderr.write(f"confinement: {error}; the command was not started\n")
        sys.stderr.flush()
        os._exit(126)


if __name__ == "__main__":
    main(sys.argv)
