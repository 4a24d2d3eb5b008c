"""What can go wrong. A failure says what happened; the stage at which it happens says what it means.

Each failure has a stable identifier that survives rewording, the observed value in its message, and a remedy where there
is one. The classes carry no exit code: ``exit_code`` picks it from the one fact that matters, whether the node is in our
hands (a first write was sent, or a resume has passed its preflight), as spec section 2 says.
"""

from __future__ import annotations


class Failure(Exception):
    """Base of everything expected to go wrong. ``id`` is stable, ``message`` for people, ``remedy`` a command or a thing to do."""

    def __init__(self, identifier: str, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.id = identifier
        self.message = message
        self.remedy = remedy


class Usage(Failure):
    """Wrong words on the command line, or a confirmation that was not given."""


class Refused(Failure):
    """A check, the resume tables, the rule's shape or the identity says no."""


class Unreachable(Failure):
    """A server gave no usable answer to a read."""


class Forbidden(Failure):
    """The server knows us and says no (403), or does not know us (401)."""


class Missing(Failure):
    """A thing that was asked for by name does not exist."""


class LostGuard(Failure):
    """A guarded write met another state: 409, or 422 of a failed ``test``. Nothing was written."""


class RefusedByServer(Failure):
    """A definite no to a write for a reason that is not a guard. Nothing was written."""


class RemoteMoved(Failure):
    """The remote branch is not where our commit is built on. Nothing was pushed."""


class RemoteRejected(Failure):
    """The remote refused the push for certain. Nothing was pushed."""


class UnknownOutcome(Failure):
    """A write whose answer was lost and that could not be read back: it may have happened."""


class Expired(Failure):
    """The wait has used up its time."""


class Drift(Failure):
    """Labels, block or annotation are neither what we left nor what we want."""


class EndedElsewhere(Failure):
    """Our id has gone from the node without the target being reached, or another id is there."""


class NodeGone(Failure):
    """The node was deleted, or created anew under its name: nothing protects it."""


class Interrupted(Failure):
    """SIGINT, SIGTERM or SIGHUP, acted on between writes."""


class InterruptedNow(BaseException):
    """An interrupt while nothing can have been written: raised out of whatever is running, for no half-done write is possible."""


class Malformed(Failure):
    """An object of the API that lacks what Kubernetes promises; whatever depends on it is unknown."""


# (before the node is in our hands, from then on); anything that is not here is a bug: (1, 4).
_CODES: dict[type[Failure], tuple[int, int]] = {
    Usage: (2, 4),
    Refused: (3, 4),
    Unreachable: (3, 4),
    Forbidden: (3, 4),
    Missing: (3, 4),
    LostGuard: (3, 4),
    RefusedByServer: (3, 4),
    RemoteMoved: (3, 4),
    RemoteRejected: (3, 4),
    UnknownOutcome: (4, 4),
    Expired: (3, 4),
    Drift: (3, 4),
    EndedElsewhere: (3, 4),
    NodeGone: (3, 4),
    Interrupted: (130, 4),
    Malformed: (3, 4),
}


def exit_code(error: BaseException, in_hands: bool) -> int:
    """The exit code of spec section 2 for an error, given whether the node was in our hands when it happened."""
    return _CODES.get(type(error), (1, 4))[in_hands] if isinstance(error, Failure) else (4 if in_hands else 1)


def outcome_word(error: BaseException, in_hands: bool) -> str:
    """The report's ``outcome`` for an error (spec section 2)."""
    if in_hands or isinstance(error, UnknownOutcome):
        return "ended-elsewhere" if isinstance(error, EndedElsewhere) else "failed-cordoned"
    if isinstance(error, Usage):
        return "usage-error"
    if isinstance(error, Interrupted):
        return "interrupted"
    if isinstance(error, (Refused, Expired, EndedElsewhere, Drift)):
        return "blocked"
    return "failed-before-cordon" if isinstance(error, Failure) else "bug"
