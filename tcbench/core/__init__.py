"""Records, files, processes and errors, which all other packages use."""
