"""`kvasir bench`: what an engine does on this machine, measured in-process."""
