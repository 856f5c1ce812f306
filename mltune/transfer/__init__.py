"""From recorded datasets to models that runs start from."""
