"""Winners: the folder with the source, machine code and description of the best kernel of a run."""
