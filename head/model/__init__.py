"""The regressor head: options, modules, vector tables on the device, and optimizer."""
