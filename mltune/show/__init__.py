"""Display of results: tables, live progress, and export to Optuna studies."""
