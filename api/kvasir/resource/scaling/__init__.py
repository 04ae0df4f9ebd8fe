"""Schedules of `spec.autoscaling`: cron expressions and the windows that they begin and end."""
