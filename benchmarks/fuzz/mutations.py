"""Damage: of bytes, of lines, of cells and of the tree that JSON or YAML holds. Seeded."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from typing import Any

import yaml

Damage = Callable[[bytes, random.Random], bytes]

NUMBERS = (
    *("nan", "NaN", "-nan", "inf", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-1", "0"),
    *("-0.0", "1e308", "9" * 40, "-" + "9" * 25, "0x10", "1_000", "1e999999999", "٣", "1,5", "0b1"),
    *("18446744073709551616", "9223372036854775807", "2147483648", "1.5", "12:30:45", "1e18"),
)
TEXTS = (
    *("", " ", "null", "None", "true", "~", "[]", "{}", "[1, 2]", '{"a": 1}', "\x00", "\ufeff"),
    *("../../etc/passwd", "/etc/passwd", "${HOME}", "${NOPE}", "${A:${B:1}}", "<<", "&a", "*a"),
    *("é", "名前", "\ud7ff", "a" * 5000, "'", '"', "\\", "\n", "\t", "%s%n", "!!python/object:os"),
    *("=cmd|' /C calc'!A0", "Et*2|t,L", "(t*2|)*3", "1-4,9", "none", "full", "tp", "8x8xMI355X"),
)
TREES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 2**70, -(2**70), 1e308, -1.5, 1e-320),
    *(float("nan"), float("inf"), float("-inf"), [], {}, [[]], [{}], {"": None}, {"a": [1]}),
    *([1, 2, 3], ["x"] * 300, [0.5, None], {"name": "x"}, {"extends": "x.yaml"}),
)


def any_value(dice: random.Random) -> Any:
    """A value that does not belong where it is put."""
    kind = dice.randrange(4)
    if kind == 0:
        return dice.choice(NUMBERS)
    if kind == 1:
        return dice.choice(TEXTS)
    if kind == 2:
        nested: Any = 1
        for _ in range(dice.choice((1, 3, 60, 1200 if dice.random() < 0.1 else 5))):
            nested = [nested] if dice.random() < 0.5 else {"a": nested}
        return nested
    return copy.deepcopy(dice.choice(TREES))


def damaged_tree(tree: Any, dice: random.Random) -> Any:
    """The tree with one to four nodes replaced, dropped, doubled or renamed."""
    if not isinstance(tree, dict | list):
        return any_value(dice)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = []
        pending = [tree]
        while pending and len(places) < 3000:
            node = pending.pop()
            keys: Any = node if isinstance(node, dict) else range(len(node))
            for key in keys:
                places.append((node, key))
                if isinstance(node[key], dict | list):
                    pending.append(node[key])
        if not places:
            return any_value(dice)
        node, key = dice.choice(places)
        act = dice.randrange(6)
        if act <= 2:
            node[key] = any_value(dice)
        elif act == 3:
            del node[key]
        elif act == 4:
            other, name = dice.choice(places)
            reachable = name in other if isinstance(other, dict) else name < len(other)
            node[key] = copy.deepcopy(other[name]) if reachable else None
        elif isinstance(node, dict):
            node[dice.choice(TEXTS) if dice.random() < 0.5 else f"{key}x"] = node.pop(key)
        else:
            node.extend(node[:20])
    return tree


def as_json(content: bytes, dice: random.Random) -> bytes:
    """Damage to the tree of a JSON document."""
    text = json.dumps(damaged_tree(json.loads(content), dice), ensure_ascii=dice.random() < 0.5)
    for name in ("NaN", "Infinity"):
        if dice.random() < 0.3:
            text = text.replace(name, dice.choice(("1e400", "null", name)))
    return text.encode("utf-8", "surrogatepass")


def as_json_lines(content: bytes, dice: random.Random) -> bytes:
    """Damage to the tree of some lines of JSON."""
    lines = content.splitlines()
    for _ in range(dice.randrange(1, 4)):
        place = dice.randrange(len(lines))
        try:
            lines[place] = as_json(lines[place], dice).replace(b"\n", b" ")
        except ValueError:
            lines[place] = b"{"
    return b"\n".join(lines) + b"\n"


def as_yaml(content: bytes, dice: random.Random) -> bytes:
    """Damage to the tree of a YAML document, or YAML's own dangers."""
    if dice.random() < 0.1:
        return content + dice.choice(YAML_DANGERS)(dice).encode()
    tree = damaged_tree(yaml.load(content, Loader=yaml.CSafeLoader), dice)
    try:
        text: str = yaml.dump(tree, Dumper=yaml.CSafeDumper, allow_unicode=True, sort_keys=False)
    except RecursionError:
        return json.dumps(tree, default=str).encode() if dice.random() < 0.5 else b"[" * 100_000
    return text.encode("utf-8", "surrogatepass")


def _bomb(dice: random.Random) -> str:
    """Nine lists of nine times the one before: a billion values in some lines."""
    width = dice.choice((2, 9))
    lines = ["\nbomb0: &a0 [x, x, x]"]
    for level in range(1, dice.choice((9, 40))):
        lines.append(f"bomb{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines) + "\n"


YAML_DANGERS: tuple[Callable[[random.Random], str], ...] = (
    _bomb,
    lambda _: "\nx: !!python/object/apply:os.system ['true']\n",
    lambda _: "\nx: !!python/name:os.system\n",
    lambda _: "\nx: &a [*a]\n",
    lambda _: "\nx: &a {b: *a, <<: *a}\n",
    lambda _: "\n<<: [{a: 1}, {b: 2}]\n",
    lambda d: "\nx: " + "[" * d.choice((50, 2000)) + "\n",
    lambda d: "\nx: " + "{a: " * d.choice((50, 2000)) + "1" + "}" * d.choice((0, 50)) + "\n",
    lambda _: "\n? [a, b]\n: 1\n",
    lambda _: "\n1: x\n2.5: y\n",
    lambda _: "\nmodel: a\nmodel: b\n",
    lambda _: "\nx: 2001-99-99\n",
    lambda _: "\nx: 190:20:30:99999999999999999999\n",
    lambda _: "\nx: 0b" + "1" * 5000 + "\n",
    lambda _: "\nx: " + "9" * 5000 + "\n",
    lambda _: "\nx: !!int 0o99\n",
    lambda _: "\nx: !!binary '%%%'\n",
    lambda _: "\nx: !!timestamp 0000-00-00\n",
    lambda _: "\n---\nsecond: document\n",
    lambda _: "\n%YAML 9.9\n",
    lambda _: "\nextends: ../../../../etc/passwd\n",
    lambda _: "\nextends: [a.yaml, " + "b.yaml, " * 50 + "]\n",
)


def as_cells(content: bytes, dice: random.Random) -> bytes:
    """Damage to cells, columns and rows of a CSV."""
    rows = [line.split(",") for line in content.decode().splitlines()]
    for _ in range(dice.randrange(1, 6)):
        row = dice.choice(rows[1:] if len(rows) > 1 and dice.random() < 0.9 else rows)
        place = dice.randrange(len(row))
        act = dice.randrange(8)
        if act <= 5:
            row[place] = str(any_value(dice)) if dice.random() < 0.3 else dice.choice(NUMBERS)
        elif act == 6:
            del row[place]
            row = row or [""]
        else:
            row.insert(place, dice.choice(TEXTS))
        if not row:
            row.append("")
    if dice.random() < 0.05:
        rows = rows[:1]
    return "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")


def as_words(content: bytes, dice: random.Random) -> bytes:
    """Words of a text replaced by numbers and texts that do not belong there."""
    words = content.split(b" ")
    for _ in range(dice.randrange(1, 30)):
        junk = dice.choice(NUMBERS if dice.random() < 0.7 else TEXTS)
        words[dice.randrange(len(words))] = junk.encode("utf-8", "surrogatepass")
    return b" ".join(words)


def as_lines(content: bytes, dice: random.Random) -> bytes:
    """Lines dropped, doubled, shuffled, glued together or given other ends."""
    lines = content.split(b"\n")
    act = dice.randrange(5)
    if act == 0:
        dice.shuffle(lines)
    elif act == 1:
        lines = [line for line in lines if dice.random() < 0.8]
    elif act == 2:
        lines = [line for line in lines for _ in range(dice.choice((1, 1, 3)))]
    elif act == 3:
        lines = [a[dice.randrange(len(a) + 1) :] + dice.choice(lines) for a in lines]
    else:
        place = dice.randrange(len(lines))
        lines[place] = lines[place] * dice.choice((2, 50))
    return dice.choice((b"\n", b"\n", b"\r\n", b"\r")).join(lines)


def as_bytes(content: bytes, dice: random.Random) -> bytes:
    """Bytes flipped, cut, doubled or put in."""
    act = dice.randrange(5)
    if act == 0:
        return content[: dice.randrange(len(content) + 1)]
    if act == 1:
        return content[dice.randrange(len(content) + 1) :]
    damaged = bytearray(content)
    for _ in range(dice.choice((1, 3, 30))):
        place = dice.randrange(len(damaged) + 1)
        if act == 2 and place < len(damaged):
            damaged[place] = dice.randrange(256)
        elif act == 3:
            damaged[place:place] = bytes(dice.randrange(256) for _ in range(3))
        else:
            del damaged[place : place + dice.randrange(20)]
    return bytes(damaged)


def as_nothing(content: bytes, dice: random.Random) -> bytes:
    """Something else entirely: nothing, blanks, noise, or a run of one character."""
    del content
    act = dice.randrange(4)
    if act == 0:
        return dice.choice((b"", b"\n", b" ", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00" * 100))
    if act == 1:
        return dice.randbytes(dice.randrange(300))
    if act == 2:
        return dice.choice(b"[{(\"'-:,#&*|<\x1b9 ").to_bytes() * dice.choice((10, 3000))
    return dice.choice(TEXTS).encode("utf-8", "surrogatepass")


def gzipped(damage: Damage) -> Damage:
    """Damage inside a gzip file, to the file itself, or a bomb of blanks."""

    def damaged(content: bytes, dice: random.Random) -> bytes:
        act = dice.random()
        if act < 0.002:
            return gzip.compress(b'{"traceEvents": [' + b" " * 2**26, 1)
        if act < 0.3:
            return as_bytes(gzip.compress(content, 1), dice)
        return gzip.compress(damage(content, dice), 1)

    return damaged
