"""From a model's text to reasoning, content and tool calls: one state machine a format."""
