"""Readers of data sets, in the formats they are distributed in; nothing is downloaded."""
