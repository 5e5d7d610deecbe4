"""The agent inside a node worker: it reports, beats, supervises runners. Alone writes its node's records."""
