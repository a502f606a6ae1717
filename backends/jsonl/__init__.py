"""Sessions as files: one append-only file of JSON lines each."""
