"""From reality to rows: profiles, traces, logs and runs."""
