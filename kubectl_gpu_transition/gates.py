"""The two creation gates in ``cluster-config.env``: the fleet generator's own grammar, to the letter (facts: its env parser)."""

from __future__ import annotations

GATES = ("GPU_SHARED_CREATION_ENABLED", "GPU_VM_CREATION_ENABLED")


def read_env(data: bytes) -> dict[str, str]:
    """Keys and values; of a repeated key the last counts. One ``KEY=VALUE`` a line, both trimmed, one pair of surrounding quotes removed;
    no comments behind a value, no ``export``, no continuation. Raises UnicodeDecodeError for text that is not UTF-8."""
    values = {}
    for line in data.decode("utf-8").split("\n"):
        line = line.strip()
        if not line or line.startswith("#") or "=" not in line:
            continue
        key, value = (part.strip() for part in line.split("=", 1))
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
            plain = value.split("#", 1)[0].strip().strip("\"'")
            note = " (the comment behind it is part of the value: put it on a line of its own)" if "#" in value and plain == "false" else ""
            complaints.append(f"{gate} is {value!r}, not exactly 'false'{note}")
    return complaints
