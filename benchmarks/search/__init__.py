"""How well the search finds fast configs, against simpler searches on the same problems."""
