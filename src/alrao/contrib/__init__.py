"""Kept and tested, but not recommended: the adaptive softmax, copies on several devices, ``zoom``."""
