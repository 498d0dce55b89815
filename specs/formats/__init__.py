"""Readers and writers of foreign files; each format's reader and writer live together."""
