"""A language model as one proposer and prior among others: asked, checked, never trusted."""
