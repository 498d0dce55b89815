"""What a person runs: studies, oracles, reports and the command line."""
