"""The expected speed of a configuration: features, physics, cost models."""
