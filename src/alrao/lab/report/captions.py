"""The words under the figures, for a reader who has not seen the code: what it is, what to look for."""

from __future__ import annotations

__all__ = ["caption"]

CAPTIONS = {
    "curves": """
        The {what} after each epoch. {better} is better. The thick red line is Alrao, which was given no
        learning rate; the lines from violet (slowest) to gold (fastest) are SGD at one rate each. Look
        whether the red line keeps close to the best of them: which one that is, nobody knows before
        trying them all. Thin lines are single seeds, thick ones their mean; a cross marks where a run
        diverged. Click a name to hide its curves, twice to see them alone.
    """,
    "adam": """
        The same idea on Adam instead of SGD (appendix E of the paper), the lines from violet (slowest) to
        gold (fastest) being Adam at one rate each. The paper found that it trains well and generalises
        badly: look whether the training curve of Alrao-Adam keeps up with the best rate of Adam while its
        test curve turns upwards.
    """,
    "posterior": """
        The output layer of Alrao has {copies} copies, each learning at a rate of its own; the prediction
        is a weighted mean of theirs, and the weights are a Bayesian posterior that follows whoever
        predicts best. First the weights during training (seed {seed}), on a logarithmic axis of time;
        then the rate of the copy that leads{seeds}. Look for fast copies that drop out within the first
        steps, for a fast one that leads early, and for a slower one that takes over: the paper saw all
        three.
    """,
    "valley": """
        Test {measure} at the best epoch on validation data, against the learning rate; {better} is
        better. SGD is good in a narrow range of rates and bad on both sides of it, and where that range
        lies changes with the network and the data. The red line is Alrao, which uses all these rates at
        once and was told none: look how few rates are better than the line, and by how much. Bars and the
        band are one standard deviation over seeds.
    """,
    "triangle": """
        Each cell is {method} with rates drawn from one interval: lowest rate across, highest rate up. The
        cells on the diagonal are plain {base} at one rate. {sides} at the best epoch on validation data;
        the brighter, the better; a cross is a run that diverged. Look for the large region where the
        interval does not matter: it works as soon as the interval contains one suitable rate.
    """,
    "frozen": """
        A random fraction of the features learns, the others stay as they were drawn at the start
        (appendix G of the paper). Look how flat the curve is towards the right: a network hardly notices
        that many of its features do not learn, which is why Alrao can afford to give many of them a rate
        that is too small.
    """,
    "features": """
        Every point is a feature (a unit or a channel) of {method}, seed {seed}: the rate that it drew,
        and how far its weights are from where they began, as a multiple of their norm then. Below the
        lower dashed line ({still:g}) a feature hardly learnt, above the upper one ({wild:g}) it ran wild,
        between them it learnt. Here {slow} hardly moved, {learning} learnt, {fast} ran wild. Look how
        broad the useful range of rates is.
    """,
    "theorem": """
        The theorem of appendix B: softmax regression on fixed features, with {copies} copies of the
        output layer of which {good} learn at a rate below 1/λ, where λ bounds the curvature of the loss,
        and the others at rates that are too large. First the loss, then how far it is above the optimum.
        Look how the red line, the mixture, follows whichever copy is best and reaches the optimum, while
        the fast copies diverge.
    """,
}


def caption(name: str, **values: object) -> str:
    """The words of a figure, with what is particular to it filled in."""
    return " ".join(CAPTIONS[name].split()).format(**values)
