"""The entry point of the command ``alrao``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say what must be installed for it."""
    try:
        from .cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("alrao"):
            raise
        sys.exit(f"alrao: the command line needs the package {error.name}: pip install 'alrao[lab]'")
    run()


if __name__ == "__main__":
    main()
