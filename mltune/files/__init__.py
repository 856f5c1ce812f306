"""Files: reading what strangers may have prepared, and writing that survives a crash."""
