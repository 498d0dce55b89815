"""The two ways in which a request can fail without a bug: bad input, or nothing feasible."""

from __future__ import annotations

from specs.text import printable_words

LONGEST_WORD, LONGEST_MESSAGE = 300, 900
"""Characters: what a message quotes of a file is cut there."""


class InputError(Exception):
    """The input cannot be used; the message is one sentence: what, where, what to do (exit 2).

    What is quoted of a file may hold anything: line ends and escape sequences become blanks, and
    what is too long for a sentence is cut.
    """

    def __init__(self, message: str) -> None:
        words = printable_words(message)
        sentence = " ".join(w if len(w) <= LONGEST_WORD else f"{w[:60]}..." for w in words)
        if len(sentence) > LONGEST_MESSAGE:
            sentence = f"{sentence[:LONGEST_MESSAGE]}..."
        super().__init__(sentence)


class InfeasibleError(Exception):
    """The input is fine but no config satisfies it; the message says by how much (exit 3)."""
