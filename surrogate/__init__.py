"""From a configuration to its memory and step time, with what was learned from measurements."""
