"""Adapters: mltune's search inside Kernel Tuner, Optuna, Triton, Helion and cuTile."""
