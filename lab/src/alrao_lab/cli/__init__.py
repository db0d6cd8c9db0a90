"""The command ``alrao``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or name the extra to install if one of its packages is missing."""
    try:
        from .app import run

        run()
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("alrao"):
            raise
        package = error.name.partition(".")[0]
        sys.stderr.write(f"alrao: the command line needs the package {package}: pip install alrao-lab\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # during the imports; the commands have an answer of their own
        raise SystemExit(130) from None
