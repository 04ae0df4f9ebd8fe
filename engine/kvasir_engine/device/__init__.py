"""What depends on the device alone: launches, uploads, graph capture, collectives."""
