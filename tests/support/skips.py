"""The last line of a test run: how many tests were skipped, why, and how to get them."""

from collections import Counter


def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped") if reporter else None  # the workers of xdist have no terminal
    if skipped:
        reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
        several = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
        reporter.write_line(f"{len(skipped)} skipped: {several}", yellow=True)
