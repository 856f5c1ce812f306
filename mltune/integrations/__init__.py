"""Adapters: mltune's search inside Kernel Tuner, Optuna, Triton and Helion."""
