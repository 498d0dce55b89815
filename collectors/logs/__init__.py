"""Training logs into measured runs."""
