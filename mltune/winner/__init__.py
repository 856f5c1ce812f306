"""The result, to take away: the winner's source, machine code and launch, with examples that run without mltune."""
