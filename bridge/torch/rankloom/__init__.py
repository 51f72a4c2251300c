"""rankloom: a distributed job inside one process, for tests. The bridge to PyTorch is rankloom.torch."""
