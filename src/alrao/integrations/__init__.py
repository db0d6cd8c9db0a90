"""Adapters to other libraries: one module and one extra each. The core imports none of them."""
