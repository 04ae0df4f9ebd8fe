"""OpenTelemetry spans: one a request, sent as OTLP over HTTP. Off unless an endpoint is given."""
