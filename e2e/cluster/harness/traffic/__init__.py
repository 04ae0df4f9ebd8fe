"""The load of the zero-drop proof: many short requests, many long streams, no client retries."""
