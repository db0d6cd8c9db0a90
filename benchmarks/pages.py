"""Tables of the documentation that benchmarks write."""

from __future__ import annotations

from pathlib import Path


def replace_table(page: Path, script: str, text: str) -> None:
    """Put a table between the marks that name its script."""
    begin, end = f"<!-- table: benchmarks/{script} -->", "<!-- end of the table -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
