"""`kubectl kvasir`: the commands for people who run models on a cluster."""
