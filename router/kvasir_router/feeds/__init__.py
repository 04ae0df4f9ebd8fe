"""What engines tell the router besides answers: load, block events, prompt reports."""
