"""Alrao inside of other libraries: one module for each, imported by nobody else, one extra for each."""
