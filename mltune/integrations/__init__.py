"""Adapters: mltune's search inside Kernel Tuner, Optuna and Triton."""
