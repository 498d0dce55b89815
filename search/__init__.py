"""From the surrogate and what was measured to the next configurations."""
