"""The creation gates, to the letter of the generator's own grammar (facts 1.3)."""

from __future__ import annotations

import pytest

from kubectl_gpu_transition.gates import find_comments, find_open_gates, read_env

SHARED, VM = "GPU_SHARED_CREATION_ENABLED", "GPU_VM_CREATION_ENABLED"


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        pytest.param("A=b", "A", "b", id="a key and a value"),
        pytest.param("  A =  b  ", "A", "b", id="both are trimmed"),
        pytest.param("A=b\r", "A", "b", id="a carriage return is trimmed"),
        pytest.param("A=b=c", "A", "b=c", id="the first sign splits"),
        pytest.param("A=", "A", "", id="an empty value"),
        pytest.param('A="b"', "A", "b", id="one pair of double quotes goes"),
        pytest.param("A='b'", "A", "b", id="one pair of single quotes goes"),
        pytest.param("A=\"'b'\"", "A", "'b'", id="only one pair goes"),
        pytest.param("A=\"b'", "A", "\"b'", id="quotes have to match"),
        pytest.param('A="', "A", '"', id="one quote is no pair"),
        pytest.param('A="b" # c', "A", '"b" # c', id="a comment behind a value is part of it, and keeps the quotes"),
        pytest.param("A=b\\", "A", "b\\", id="no continuation"),
        pytest.param("export A=b", "export A", "b", id="no export"),
        pytest.param("A=\x1cb", "A", "\x1cb", id="a control character is no space"),
        pytest.param("A=\u00a0b\u2003", "A", "b", id="a space of Unicode is a space"),
    ],
)
def test_a_line_is_read(line: str, key: str, value: str) -> None:
    assert read_env(line.encode()) == {key: value}


@pytest.mark.parametrize("line", ["", "   ", "# A=b", "   # A=b", "A", "\t"])
def test_a_line_says_nothing(line: str) -> None:
    assert read_env(line.encode()) == {}


def test_of_a_repeated_key_the_last_counts() -> None:
    assert find_open_gates(f"{SHARED}=false\n{VM}=true\n{VM}=false\n".encode()) == []
    assert len(find_open_gates(f"{SHARED}=false\n{VM}=false\n{VM}=true\n".encode())) == 1


@pytest.mark.parametrize("value", ["false", '"false"', "'false'", "  false  "])
def test_a_gate_is_closed(value: str) -> None:
    assert find_open_gates(f"{SHARED}={value}\n{VM}={value}".encode()) == []


@pytest.mark.parametrize(
    "value",
    ["", "False", "FALSE", "true", "0", "no", "fal se", "\"'false'\"", "false;", "false\x1f", "\x1cfalse", "f\u0430lse", "'false\""],
)
def test_a_gate_is_open(value: str) -> None:
    complaints = find_open_gates(f"{SHARED}={value}\n{VM}=false".encode())
    assert len(complaints) == 1
    assert complaints[0].startswith(f"{SHARED} is ")


def test_an_absent_gate_is_open() -> None:
    assert find_open_gates(b"") == [f"{SHARED} is absent, which means open", f"{VM} is absent, which means open"]
    assert find_open_gates(f"#{SHARED}=false\n{VM}=false".encode()) == [f"{SHARED} is absent, which means open"]
    assert find_open_gates(b"\xef\xbb\xbf" + f"{SHARED}=false\n{VM}=false".encode()) == [f"{SHARED} is absent, which means open"]


@pytest.mark.parametrize(("value", "comment"), [("false # why", "# why"), ('"false" # why', "# why"), ("false#why", "#why")])
def test_a_comment_behind_the_value_opens_it_and_is_named(value: str, comment: str) -> None:
    data = f"{SHARED}=false\n{VM}={value}".encode()
    assert find_open_gates(data) == [f"{VM} is {value!r}, not exactly 'false', for a comment behind a value is part of it"]
    assert find_comments(data) == [comment]


def test_a_comment_behind_another_value_is_not_what_opens_it() -> None:
    assert find_comments(f"{SHARED}=true # why\n".encode()) == []
    assert "comment" not in find_open_gates(f"{SHARED}=true # why\n".encode())[0]


def test_text_that_is_not_utf_8_is_an_error() -> None:
    with pytest.raises(UnicodeDecodeError):
        find_open_gates(b"A=\xff")
