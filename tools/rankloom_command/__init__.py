"""The command `rankloom`: shows runs that the library wrote as files (docs/run-files.md)."""
