"""Stage one from table to store: read, find what is missing, encode, commit.

The device never waits for reading, tokenising or writing. Work is spread over processes, devices
or a Ray cluster.
"""
