"""The measuring of sessions, and the processes in which it happens."""
