"""The inference study: which optimisations of a PyTorch causal language model to keep."""
