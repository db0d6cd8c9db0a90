"""Kept and tested, but not part of the top level: ``zoom``, which narrows the interval of rates."""
