"""``python -m alrao.lab.cli`` is the command ``alrao``."""

from . import main

main()
