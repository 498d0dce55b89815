"""Fuzzing of every reader: damaged samples are accepted or refused with one clear sentence."""
