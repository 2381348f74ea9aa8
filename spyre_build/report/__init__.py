"""The page and the trace that are made of a finished, running or dead build."""
