"""Files: reading of files that strangers may have prepared, and writing that survives a crash."""
