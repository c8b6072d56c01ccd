"""One module per noun of the port, each over a Link; SQL is in the common subset of `storage.statements`."""
