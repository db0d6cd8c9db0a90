"""What test files share: models, data, runs and comparisons."""
