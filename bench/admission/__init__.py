"""Which admission policy serves the most requests well? A discrete-event comparison; see `bench/README.md`."""
