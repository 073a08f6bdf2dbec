"""The ``easyscale`` command: its verbs, and one sentence for everything that goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from easyscale.cli.compare import compare_command
from easyscale.cli.plan import plan_command
from easyscale.cli.ps import ps_command
from easyscale.cli.run import run_command
from easyscale.cli.scale import scale_command
from easyscale.cli.simulate import simulate_command
from easyscale.cli.verify import verify_command
from easyscale.cli.watch import watch_command
from easyscale.core.errors import EasyScaleError, RefusedError


def _print_version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    import platform

    from easyscale.launch.versions import DISTRIBUTION, package_version

    torch = package_version("torch")
    click.echo(f"easyscale {package_version(DISTRIBUTION)} (torch {torch}, Python {platform.python_version()})")
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show versions.",
)
def cli() -> None:
    """Elastic data-parallel PyTorch training with the same bits on any number of workers."""


cli.add_command(run_command)
cli.add_command(scale_command)
cli.add_command(ps_command)
cli.add_command(watch_command)
cli.add_command(verify_command)
cli.add_command(compare_command)
cli.add_command(plan_command)
cli.add_command(simulate_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 2 for wrong arguments, 1 for what failed, 0 otherwise."""
    try:
        return int(cli.main(args=arguments, prog_name="easyscale", standalone_mode=False) or 0)
    except click.UsageError as error:
        return _wrong_usage(error)
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except RefusedError as error:
        return _say(str(error), 2)
    except EasyScaleError as error:
        return _say(str(error), 1)
    except (KeyboardInterrupt, click.Abort):
        return _say("stopped by SIGINT", 130)


def _wrong_usage(error: click.UsageError) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        click.echo(error.format_message(), err=True)
        return error.exit_code
    command = error.ctx.command_path if error.ctx else "easyscale"
    return _say(f"{error.format_message().rstrip('.')} ({command} --help lists what can be given)", error.exit_code)


def _say(sentence: str, exit_code: int) -> int:
    print(f"easyscale: {sentence}", file=sys.stderr)
    return exit_code
