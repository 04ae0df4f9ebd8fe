"""Pods that will end, told before they do: those of nodes that are drained, and those that ask."""
