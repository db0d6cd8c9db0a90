"""Heads for particular purposes, kept and tested: copies on several devices, the adaptive softmax."""
