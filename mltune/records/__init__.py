"""Records of a run: trials, their store, the event log, the header and the declaration of the winner."""
