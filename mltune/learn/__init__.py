"""From numbers to the next configuration: features, cost models, pruning, sampling."""
