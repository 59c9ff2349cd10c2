"""`coordinator`: the command line's entry. Whatever happens, a person gets one line and a documented exit code.

The one broad `except` of the command line is here: no traceback reaches a user, `--debug` (or COORDINATOR_DEBUG=1) shows
it, the log (`log.py`) keeps it. Commands return an exit code or None; what they could not do they raise as `Failure`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from coordinator.cli import early, log
from coordinator.cli.context import Context, common_options
from coordinator.cli.failures import Bug, Failure, translate
from coordinator.cli.lazy import LazyGroup
from coordinator.cli.table import COMMANDS
from coordinator.views.exit_codes import ExitCode

HEADLESS = ("-p", "--print")
FORMATS = ("--output-format", "--input-format")


class Root(LazyGroup):
    """The root group: flags in a command's place are those of `run` if `-p` or one of the formats is among them; any other
    flag that is not the root's own is one of `chat`, and so is nothing at all. `version` is what it says."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and self._is_run(ctx, args):
            args = ["run", *args]
        elif args[:1] == ["version"]:
            args = ["--version", *args[1:]]
        elif args and args[0].startswith("--") and len(args[0]) > 2 and not self._is_own(ctx, args[0]):
            if (command := next((arg for arg in args if arg in self.entries), None)) is not None:
                flag = args[0].partition("=")[0]
                raise click.UsageError(f"{flag} stands behind the command: `coordinator {command} {flag} …`", ctx)
            args = ["chat", *args]
        return super().parse_args(ctx, args)

    def _is_run(self, ctx: click.Context, args: list[str]) -> bool:
        """Whether flags that stand in a command's place are those of `run`. Behind a flag of the root's own, or with the name
        of a command among them, they are not."""
        words = args[: args.index("--")] if "--" in args else args
        if args[0] in HEADLESS or args[0].partition("=")[0] in FORMATS:
            return True
        if self._is_own(ctx, args[0]) or any(word in self.entries for word in words):
            return False
        return any(word in HEADLESS or word.partition("=")[0] in FORMATS for word in words)

    def _is_own(self, ctx: click.Context, flag: str) -> bool:
        name = flag.partition("=")[0]
        return any(name in parameter.opts for parameter in self.get_params(ctx))


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        cli = ctx.find_object(Context)
        assert cli is not None
        cli.console.line(f"coordinator {metadata.version('coordinator')}")
        ctx.exit()


@click.group(
    cls=Root,
    entries=COMMANDS,
    fallback="chat",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Split a goal, run worker agents as tracked tasks, never lose a result.",
    epilog="Without a command: chat. `coordinator COMMAND --help` says more.",
)
@click.option(
    "-V", "-v", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@common_options
@click.pass_context
def cli(ctx: click.Context) -> int | None:
    """Nothing named: talk."""
    if ctx.invoked_subcommand is not None:
        return None
    chat = cli.get_command(ctx, "chat")
    assert chat is not None
    with chat.make_context("chat", [], parent=ctx) as sub:
        code: int | None = chat.invoke(sub)
        return code


def invoke(args: Sequence[str] | None, context: Context) -> int:
    """Run the command that `args` name; its exit code."""
    words = sys.argv[1:] if args is None else list(args)
    if any("json" in word for word in words):
        from coordinator.cli import unbegun

        unbegun.foresee(context, words)
    try:
        code = cli.main(args=words, prog_name="coordinator", standalone_mode=False, obj=context)
        return code if isinstance(code, int) else ExitCode.DONE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "coordinator"
        hint = (
            "" if "see `" in error.format_message() or "did you mean" in error.format_message() else f" (see `{path} --help`)"
        )
        failure = Failure(" ".join(error.format_message().split()) + hint, ExitCode.USAGE)
    except click.ClickException as error:
        failure = Failure(" ".join(error.format_message().split()), ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        _tell_cut_short(context, words, ExitCode.INTERRUPTED)
        return ExitCode.INTERRUPTED
    except SystemExit as left:  # by a signal, before there was a session
        _tell_cut_short(context, words, left.code)
        raise
    except Exception as error:
        failure = translate(error)
        _show_traceback(failure, error, context)
    from coordinator.cli import unbegun

    unbegun.tell(context, words, "not_started", failure.message)
    context.console.error(failure.message, failure.more)
    return failure.code


def _tell_cut_short(context: Context, words: Sequence[str], code: object) -> None:
    from coordinator.cli import unbegun
    from worker_agent.causes import Cause

    cause = Cause.TERMINATED if code == ExitCode.TERMINATED else Cause.PERSON
    unbegun.tell(context, words, cause, cause.to_person)


def _show_traceback(failure: Failure, error: Exception, context: Context) -> None:
    if context.debug:
        import traceback

        context.console.note("".join(traceback.format_exception(error)).rstrip())
    elif isinstance(failure, Bug):
        log.uncaught("a bug", error)


def main(args: Sequence[str] | None = None) -> NoReturn:
    # Nearly everything made here lives to the end or dies by its count: looking for cycles at the usual pace, through
    # all that the imports have made, costs a sixth of a run's CPU.
    gc.set_threshold(100_000, 20, 100)
    early.open_streams()
    early.leave_on_signals()
    context = Context()
    log.install(context)
    try:
        code = invoke(args, context)
        early.have_last_words({})
        early.leave_on_signals()
    except KeyboardInterrupt:  # just before, or just after, somebody listened
        code = ExitCode.INTERRUPTED
    finally:
        context.close()
    sys.exit(code)


if __name__ == "__main__":
    main()
