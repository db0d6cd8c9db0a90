"""How results are shown: cells of tables, commands, the terminal, Markdown."""
