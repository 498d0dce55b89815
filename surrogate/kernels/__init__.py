"""Times of kernels: laws over shapes, learned from profiles and carried to any GPU."""
