"""The front as it is served, and a worker played step by step: for tests of what comes over the wire."""
