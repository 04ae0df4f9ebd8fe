"""OpenTelemetry spans: one a request, sent by OpenTelemetry's SDK as OTLP over
HTTP. Off unless an endpoint is given."""
