"""``python -m alrao_lab.cli`` is the command ``alrao``."""

from . import main

main()
