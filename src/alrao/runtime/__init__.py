"""What a reader of the optimizers need not open: no reads on the host, shards, sleeping copies."""
