"""Feeds from engines besides answers: load, block events, prompt reports."""
