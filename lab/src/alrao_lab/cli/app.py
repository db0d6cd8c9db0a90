"""The group of commands, and how the program ends."""

from __future__ import annotations

import os
from typing import Any

import click

from .. import __version__
from ..errors import LabError, unknown
from ..render.terminal import warn
from .models import export_command, predict_command
from .paper import params, reproduce, suite
from .recipes import recipes
from .records import keep, list_command, report, table
from .training import compare, train, triangle


class Commands(click.Group):
    """A group that suggests the nearest command for an unknown one, and lists commands in order of use."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    """Train neural networks without choosing a learning rate, and compare methods.

    \b
    Start with:
      alrao train digits                    train one network (scikit-learn's digits, no download)
      alrao compare digits                  Auto beside SGD at seven rates and Adam
      alrao list                            tasks, models and methods

    \b
    With your own data (a CSV file, a folder of images, a text):
      alrao train iris.csv --target kind    train; classes or numbers are told apart
      alrao predict new.csv                 predict with the run that ended last
      alrao export                          ONNX and torch.export, with a model card

    Runs are stored in runs/. Run the same command again to resume an interrupted run.
    """  # noqa: D301, click reads the backspace


for command in (
    *(list_command, train, predict_command, export_command, compare, table, report),
    *(triangle, keep, reproduce, suite, recipes, params),
):
    cli.add_command(command)


def run() -> None:
    """Run the command; an error of the user's making is one line on standard error and exit code 2."""
    try:
        cli.main(prog_name="alrao", standalone_mode=False)
    except LabError as error:
        _fail(str(error))
    except click.exceptions.Exit as done:
        raise SystemExit(done.exit_code) from None
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        raise SystemExit(2) from None
    except click.ClickException as error:
        of_task = isinstance(error, click.MissingParameter) and error.param and error.param.name == "task"
        _fail(error.format_message() + (" `alrao list` shows the tasks." if of_task else ""))
    except (click.Abort, KeyboardInterrupt):
        if os.environ.get("LOCAL_RANK", "0") == "0":  # of the processes that train a run, one says so
            warn("interrupted: run the same command to resume")
        raise SystemExit(130) from None


def _fail(message: str) -> None:
    warn(f"alrao: {' '.join(message.split())}")
    raise SystemExit(2) from None
