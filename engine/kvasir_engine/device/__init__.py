"""Device primitives that know no model: launches, uploads, graph capture, collectives."""
