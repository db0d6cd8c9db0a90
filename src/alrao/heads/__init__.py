"""The copies of an output layer, in its place in the network."""
