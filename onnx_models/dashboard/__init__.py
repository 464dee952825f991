"""The static site: what the runs say, as pages that need no server and no script to be read."""
