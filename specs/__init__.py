"""The nouns: models, GPUs, clusters, workloads, stacks, configs, and the formats they come in."""
