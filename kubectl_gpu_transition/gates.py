"""The two creation gates in ``cluster-config.env``: the fleet generator's own grammar, to the letter (facts: its env parser)."""

from __future__ import annotations

GATES = ("GPU_SHARED_CREATION_ENABLED", "GPU_VM_CREATION_ENABLED")
# What the generator's parser trims; Python's own idea of a space has four control characters more.
_SPACE = "".join(chr(number) for number in range(0x3001) if chr(number).isspace() and not 0x1C <= number <= 0x1F)


def read_env(data: bytes) -> dict[str, str]:
    """Keys and values; of a repeated key the last counts. One ``KEY=VALUE`` a line, both trimmed, one pair of surrounding quotes removed;
    no comments behind a value, no ``export``, no continuation. Raises UnicodeDecodeError for text that is not UTF-8."""
    values = {}
    for line in data.decode("utf-8").split("\n"):
        line = line.strip(_SPACE)
        if not line or line.startswith("#") or "=" not in line:
            continue
        key, value = (part.strip(_SPACE) for part in line.split("=", 1))
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        values[key] = value
    return values


def find_open_gates(data: bytes) -> list[str]:
    """One sentence for each gate that is not exactly ``false``; empty when both are closed. Raises UnicodeDecodeError."""
    values = read_env(data)
    complaints = []
    for gate in GATES:
        value = values.get(gate)
        if value is None:
            complaints.append(f"{gate} is absent, which means open")
        elif value != "false":
            note = ", for a comment behind a value is part of it" if _comment(value) else ""
            complaints.append(f"{gate} is {value!r}, not exactly 'false'{note}")
    return complaints


def _comment(value: str) -> str | None:
    """The comment that keeps a value from being ``false``."""
    plain, sign, comment = value.partition("#")
    return sign + comment if sign and plain.strip(_SPACE).strip("\"'") == "false" else None


def find_comments(data: bytes) -> list[str]:
    """The comments that stand behind a gate's ``false`` and make it something else. Raises UnicodeDecodeError."""
    values = read_env(data)
    return [comment for gate in GATES if (comment := _comment(values.get(gate, "")))]
