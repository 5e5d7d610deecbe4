"""Store: every Redis key, script and transition. The only importer of redis."""
