"""Whether our runs agree with what the paper found: a rule for each exhibit, and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ..report.copies import trace, winners
from ..report.curves import curves, mean_curve
from ..report.figure import Figure
from ..table import Experiment
from .computed import MULTIPLES, Theorem


@dataclass(frozen=True)
class Verdict:
    """Whether it agrees, and why; None where there was too little to tell."""

    agrees: bool | None
    why: str


TOO_FEW = Verdict(None, "too few runs have ended")


def check_table(experiment: Experiment, figures: dict[str, Figure]) -> Verdict:
    """Alrao does not fail, and is nearer to the best of SGD's rates than to the median of them."""
    name, grid, column = experiment.plain("alrao"), experiment.grid, f"test {experiment.measure}"
    if name not in experiment.every.index or len(grid) < 3 or grid[column].isna().all():
        return TOO_FEW
    row = experiment.every.loc[name]
    own, failed = row[column], row["failed"]
    if own != own:
        return TOO_FEW
    sign = -1 if experiment.higher else 1
    losses = sign * grid[column].fillna(sign * float("inf"))
    best, middle = sign * losses.min(), sign * losses.median()
    beaten = int((losses > sign * own).sum())
    near = sign * own <= sign * best or abs(own - best) < abs(own - middle)
    return Verdict(
        bool(failed == 0 and near and beaten >= len(grid) / 2),
        f"test {experiment.measure} of Alrao {own:.3g}, of SGD at the best of {len(grid)} rates {best:.3g}, "
        f"at the median rate {middle:.3g}; {beaten} of the rates do worse than Alrao or fail; {failed} runs "
        "of Alrao failed",
    )


def check_triangle(experiment: Experiment, figures: dict[str, Figure]) -> Verdict:
    """Intervals that contain a suitable rate, one at which plain SGD works, work."""
    if "triangle" not in figures:
        return TOO_FEW
    table = figures["triangle"].table
    cells = table[table["part"] == "test"].set_index(["lowest rate", "highest rate"])["value"]
    limit = (cells.min() * cells.max()) ** 0.5
    works = cells < limit  # which is false of nan
    suitable = [low for low, high in cells.index if low == high and works[low, high]]
    wide = [cell for cell in cells.index if cell[0] < cell[1]]
    inside = [cell for cell in wide if any(cell[0] <= rate <= cell[1] for rate in suitable)]
    outside = [cell for cell in wide if cell not in inside]
    good, lucky = int(works[inside].sum()), int(works[outside].sum())
    return Verdict(
        bool(inside) and good >= 0.9 * len(inside) and lucky <= 0.25 * max(1, len(outside)),
        f"of {len(inside)} intervals that contain a rate at which SGD works (test loss below {limit:.2g}), "
        f"{good} work; of {len(outside)} others, {lucky}",
    )


def check_posterior(experiment: Experiment, figures: dict[str, Figure]) -> Verdict:
    """The fastest copy drops out early; one that is slower than an earlier winner has nearly all weight."""
    said, right = [], []
    for record in experiment.records(experiment.plain("alrao") or ""):
        found = trace(record)
        if found.empty:
            continue
        fastest, top, rates = found.iloc[:, -1], found.max().max(), list(winners(found))
        early = [*fastest[found.index >= 50], fastest.iloc[-1]][0]
        right.append(early < 0.01 and top > 0.9 and rates[-1] < max(rates))
        said.append(
            f"seed {record.settings.seed}: weight of the fastest copy after 50 steps {early:.2g}, "
            f"largest weight of any copy {top:.2f}, leading rate {max(rates):.2g} at most and "
            f"{rates[-1]:.2g} in the end"
        )
    if not right:
        return Verdict(None, "no posterior was recorded")
    return Verdict(sum(right) > len(right) / 2, "; ".join(said))


def check_adam(experiment: Experiment, figures: dict[str, Figure]) -> Verdict:
    """In training it is better than the median of Adam's rates, in the test worse than the best of them."""
    columns = {"train": ("train", "loss"), "test": ("test", "loss")}
    ends = {}
    for name in experiment.methods.index:
        lines = curves(experiment.records(name), columns)
        means = [mean_curve(lines, column) for column in columns]
        if all(len(mean) for mean in means):
            ends[name] = [mean.iloc[-1] for mean in means]
    methods, own = experiment.methods, experiment.plain("alrao-adam")
    adam = [ends[name] for name in methods.index[methods["method"] == "adam"] if name in ends]
    if own not in ends or len(adam) < 2:
        return TOO_FEW
    train, test = ends[own]
    middle, best = median(pair[0] for pair in adam), min(pair[1] for pair in adam)
    return Verdict(
        bool(train <= middle and test > best),
        f"after the last epoch, training loss {train:.3g} (Adam: median of the rates {middle:.3g}), test "
        f"loss {test:.3g} (Adam: best rate {best:.3g})",
    )


def check_frozen(experiment: Experiment, figures: dict[str, Figure]) -> Verdict:
    """Training half of the features gains nearly as much as training all of them."""
    if "frozen" not in figures:
        return TOO_FEW
    table = figures["frozen"].table
    found = table[table["part"] == "test"].set_index("fraction")["value"]
    none, half, full = (found.get(fraction, float("nan")) for fraction in (0.0, 0.5, 1.0))
    if none + half + full != none + half + full:  # one is missing
        return TOO_FEW
    return Verdict(
        bool(half - full < 0.1 * (none - full)),
        f"test loss {full:.3g} with all features trained, {half:.3g} with half of them, {none:.3g} with none "
        "(but the output layer)",
    )


def check_theorem(theorem: Theorem) -> Verdict:
    """The mixture is at the optimum, the copies above the bound are not."""
    mixture, *copies = theorem.losses.iloc[-1]
    over = mixture - theorem.optimum
    wild = [own for multiple, own in zip(MULTIPLES, copies, strict=True) if multiple > 1]
    return Verdict(
        over < 1e-6 and min(wild) > theorem.optimum + 0.01,
        f"after {theorem.losses.index[-1]} steps the mixture is {max(0.0, over):.1g} above the optimum "
        f"{theorem.optimum:.4f}; the {len(wild)} copies with rates above 1/λ are at "
        f"{', '.join(f'{loss:.3g}' for loss in wild)}",
    )
