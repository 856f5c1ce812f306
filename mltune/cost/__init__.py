"""From a configuration to its expected speed: features, physics, cost models."""
