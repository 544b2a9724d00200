"""What goes wrong: one exception for each `code` of the API, and those of this side.

Each has ``hint`` (what to do, empty where nothing is known), ``retryable`` (whether the same may
do a moment later), ``code`` and ``facts``. All are a `SoukError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from ._credits import Credits

__all__ = [
    "Behind",
    "BinaryNotFound",
    "BudgetExceeded",
    "Busy",
    "DeadlineExceeded",
    "Forbidden",
    "GatewayUnreachable",
    "InputRefused",
    "JobFailed",
    "JobStopped",
    "KeyReused",
    "Malformed",
    "MarketRefused",
    "MarketUnreachable",
    "MethodNotAllowed",
    "Misdirected",
    "NoPlan",
    "NoneEligible",
    "NotFound",
    "PlanMoved",
    "RangeNotThere",
    "SoukError",
    "Stopping",
    "TestnetFailed",
    "TextServerFailed",
    "TooLarge",
    "TooMany",
    "TrainingFailed",
    "Unauthorized",
    "Unexpected",
    "VerificationFailed",
    "WrongState",
]


class SoukError(Exception):
    """Something went wrong; the kinds of it are below."""

    code: str = ""
    """The word of the API for it, or for what is wrong on this side."""
    retryable: bool = False
    """Whether the same question may be answered a moment later."""
    of_code: ClassVar[dict[str, type[SoukError]]] = {}

    def __init__(
        self, detail: str, hint: str = "", *, facts: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.facts: Mapping[str, Any] = facts or {}

    def __str__(self) -> str:
        return f"{self.detail}\n hint: {self.hint}" if self.hint else self.detail


Kind = TypeVar("Kind", bound=SoukError)


def _of_api(kind: type[Kind]) -> type[Kind]:
    """Of this the API tells by its code."""
    SoukError.of_code[kind.code] = kind
    return kind


@_of_api
class Malformed(SoukError):
    """The question cannot be read: a field or a parameter."""

    code = "malformed"


@_of_api
class Unauthorized(SoukError):
    """No token came, or one that is none."""

    code = "unauthorized"


@_of_api
class Forbidden(SoukError):
    """The token may not do this."""

    code = "forbidden"


@_of_api
class NotFound(SoukError):
    """There is no such thing."""

    code = "not_found"


@_of_api
class MethodNotAllowed(SoukError):
    """The path is there, and does not take this method."""

    code = "method_not_allowed"


@_of_api
class Misdirected(SoukError):
    """Asked under a name that is not the gateway's machine's."""

    code = "misdirected"


@_of_api
class WrongState(SoukError):
    """A job is not in the state that this needs."""

    code = "state"


@_of_api
class Busy(SoukError):
    """The same is being worked on."""

    code = "busy"
    retryable = True


@_of_api
class PlanMoved(SoukError):
    """The book has moved, and the plan would cost or take more than was allowed."""

    code = "plan_moved"


@_of_api
class KeyReused(SoukError):
    """The same key came with another job before."""

    code = "key_reused"


@_of_api
class TooLarge(SoukError):
    """There are more bytes than are taken."""

    code = "too_large"


@_of_api
class RangeNotThere(SoukError):
    """The range of bytes is not there."""

    code = "range"


@_of_api
class InputRefused(SoukError):
    """A model, an input or a limit cannot be used."""

    code = "input"


@_of_api
class VerificationFailed(SoukError):
    """Bytes are not those of their hash."""

    code = "verification"


@_of_api
class NoPlan(SoukError):
    """No plan fits."""

    code = "no_plan"


@_of_api
class NoneEligible(SoukError):
    """No ask suits."""

    code = "none_eligible"
    retryable = True

    @property
    def counts(self) -> Mapping[str, int]:
        """How many asks are ruled out, by cause."""
        causes = cast("Sequence[Mapping[str, Any]]", self.facts.get("not_eligible", ()))
        return {str(one["cause"]): int(one["asks"]) for one in causes}


@_of_api
class BudgetExceeded(SoukError):
    """The budget, or what the account has, is too small."""

    code = "budget"

    @property
    def needed(self) -> Credits | None:
        """What it would take, where that is known."""
        needed = self.facts.get("needed")
        return None if needed is None else Credits(int(needed))


@_of_api
class DeadlineExceeded(SoukError):
    """The deadline is too short."""

    code = "deadline"


@_of_api
class Behind(SoukError):
    """Other jobs of this account go first."""

    code = "behind"
    retryable = True


@_of_api
class MarketRefused(SoukError):
    """The market refused."""

    code = "market_refused"


@_of_api
class TooMany(SoukError):
    """Too many questions, streams or bytes at once."""

    code = "too_many"
    retryable = True


@_of_api
class MarketUnreachable(SoukError):
    """No validator answers."""

    code = "market_unreachable"
    retryable = True


@_of_api
class Stopping(SoukError):
    """The gateway is about to stop."""

    code = "stopping"
    retryable = True


@_of_api
class Unexpected(SoukError):
    """Something that neither the gateway nor this package expects."""

    code = "unexpected"


class GatewayUnreachable(SoukError):
    """No gateway answers there."""

    code = "gateway_unreachable"
    retryable = True


class JobFailed(SoukError):
    """A job ended without its outputs. ``code`` says why, as `docs/cli.md` lists them."""

    def __init__(self, job: str, code: str, cause: str, failed_before: Sequence[str] = ()) -> None:
        hint = f'what is paid for is kept: client.job("{job}").resume() goes on with it'
        super().__init__(f"job {job} failed: {cause}", hint)
        self.job = job
        self.code = code
        self.failed_before = tuple(failed_before)
        """What went wrong before and was survived, the oldest first."""


class JobStopped(SoukError):
    """A job was stopped before its outputs were there: cancelled, or its process is gone."""

    code = "interrupted"

    def __init__(self, job: str, state: str) -> None:
        super().__init__(f"job {job} is {state}", f'client.job("{job}").resume() goes on with it')
        self.job = job


class BinaryNotFound(SoukError):
    """The program `souk` is not on this machine."""

    code = "binary_not_found"


class TestnetFailed(SoukError):
    """A testnet did not come up."""

    # Not a test, whatever its name begins with.
    __test__ = False
    code = "testnet_failed"


class TextServerFailed(SoukError):
    """A server for OpenAI's clients did not start, or its client is not installed."""

    code = "text_server_failed"


class TrainingFailed(SoukError):
    """A run of training did not begin, or ended before its result was there.

    Of one that began, `facts` has `kind` (what `souk train` calls the failure, or None),
    `exit_code` and `steps_done`.
    """

    code = "training_failed"


def error_of(problem: Mapping[str, Any]) -> SoukError:
    """The exception of a problem of RFC 9457."""
    code = str(problem.get("code", ""))
    kind = SoukError.of_code.get(code, Unexpected)
    facts = problem.get("facts")
    error = kind(
        str(problem.get("detail") or problem.get("title") or "the gateway said nothing"),
        str(problem.get("hint", "")),
        facts=cast("Mapping[str, Any]", facts) if isinstance(facts, Mapping) else None,
    )
    # The gateway knows better than the kind; a newer one may have words that are not known here.
    error.code = code or kind.code
    error.retryable = bool(problem.get("retryable", kind.retryable))
    return error
