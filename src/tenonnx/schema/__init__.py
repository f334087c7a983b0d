"""Messages, files, external data and the graph index."""
