"""From a configuration to a number: compiling, verifying, timing, replaying."""
