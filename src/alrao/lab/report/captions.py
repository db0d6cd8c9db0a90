"""The words under the figures, for a reader who has not seen the code."""

from __future__ import annotations

CAPTIONS = {
    "curves": """
        The {what} after each epoch. {better} is better. The thick red line is Alrao, which is given no
        learning rate; the lines from violet (slowest) to gold (fastest) are SGD at one rate each. Look
        whether the red line stays close to the best of them, which is not known before all are tried. Thin
        lines are single seeds, thick ones their mean; a cross marks where a run diverged. Click a name to
        hide its curves, click twice to see only them.
    """,
    "adam": """
        Alrao on Adam instead of SGD (appendix E of the paper); the lines from violet (slowest) to gold
        (fastest) are Adam at one rate each. The paper found that it trains well and generalises badly: look
        whether the training curve of Alrao-Adam keeps up with the best rate of Adam while its test curve
        rises.
    """,
    "posterior": """
        Alrao's head has {copies} copies, each with its own learning rate. The prediction is the mean of
        theirs, weighted by a Bayesian posterior that favours the copies that predict best. First the
        weights during training (seed {seed}), on a logarithmic axis of time; then the rate of the heaviest
        copy{seeds}. The paper saw fast copies drop out within the first steps, a fast one lead early, and a
        slower one take over.
    """,
    "valley": """
        Test {measure} at the best epoch on validation data, against the learning rate; {better} is better.
        SGD is good in a narrow range of rates, and where that range lies changes with the network and the
        data. The red line is Alrao, which uses all these rates at once and is given none: look how few
        rates are better than the line, and by how much. Bars and the band are one standard deviation over
        seeds.
    """,
    "triangle": """
        Each cell is {method} with rates drawn from one interval: lowest rate across, highest rate up. The
        cells on the diagonal are plain {base} at one rate. {sides} at the best epoch on validation data;
        brighter is better; a cross is a run that diverged. Look for the large region where the interval
        does not matter: it works as soon as the interval contains one suitable rate.
    """,
    "frozen": """
        A random fraction of the features is trained, the others keep their initial weights (appendix G of
        the paper). Look how flat the curve is towards the right: a network loses little if many of its
        features are not trained, which is why Alrao can give many of them a rate that is too small.
    """,
    "features": """
        Every point is a feature (a unit or a channel) of {method}, seed {seed}: the rate that it drew, and
        how far its weights moved from their initial values, relative to their initial norm. Below the lower
        dashed line ({still:g}) a feature hardly learnt, above the upper one ({wild:g}) it ran wild, between
        them it learnt. Here {slow} hardly moved, {learning} learnt, {fast} ran wild. Look how broad the
        useful range of rates is.
    """,
    "theorem": """
        The theorem of appendix B: softmax regression on fixed features, with {copies} copies of the head of
        which {good} learn at a rate below 1/λ, where λ bounds the curvature of the loss, and the others at
        rates that are too large. First the loss, then its distance to the optimum. Look how the red line,
        the mixture, follows the best copy and reaches the optimum, while the fast copies diverge.
    """,
}


def caption(name: str, **values: object) -> str:
    """Return the words under a figure, with its values filled in."""
    return " ".join(CAPTIONS[name].split()).format(**values)
