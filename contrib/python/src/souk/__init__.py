"""Run ONNX models on a souk market: plan, buy device time, get arrays back.

    import souk

    with souk.testnet() as net:
        print(net.run("model.onnx", {"x": [[1.0, 2.0]]}, budget=0.5))

`Client` is for plain calls, `AsyncClient` has the same names for `await`. Amounts are `Credits`,
errors a `SoukError` with ``hint`` and ``retryable``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _models, errors
from ._async.client import AsyncClient
from ._async.job import AsyncJob, AsyncReceipt
from ._async.market import AsyncLeases, AsyncMarket, AsyncOrders
from ._async.texts import AsyncSession, AsyncSessions
from ._async.training import AsyncTraining
from ._batches import Outputs
from ._binary import find_binary
from ._contents import Inputs, ModelLike
from ._credits import Credits
from ._events import (
    Ended,
    Finished,
    Happened,
    JobEvent,
    Leased,
    NotCommanded,
    Ready,
    Retrying,
    Returned,
    Running,
    Signed,
    Unpaid,
    Uploaded,
)
from ._models import *  # noqa: F403
from ._plan import Alternative, Part, Plan, Ruled
from ._sync.client import Client
from ._sync.job import Job, Receipt
from ._sync.market import Leases, Market, Orders
from ._sync.texts import Session, Sessions
from ._sync.training import Training
from ._table import Table
from ._testnet import Testnet
from ._text_server import TextServer
from ._training_run import TrainingResult, TrainingStep, TrainOptions
from ._updates import Update
from .errors import *  # noqa: F403

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._models import Limits

# Beside these all of `souk._models`, which grows with the API, and of `souk.errors`.
__all__ = [
    "Alternative",
    "AsyncClient",
    "AsyncJob",
    "AsyncLeases",
    "AsyncMarket",
    "AsyncOrders",
    "AsyncReceipt",
    "AsyncSession",
    "AsyncSessions",
    "AsyncTraining",
    "Client",
    "Credits",
    "Ended",
    "Finished",
    "Happened",
    "Inputs",
    "Job",
    "JobEvent",
    "Leased",
    "Leases",
    "Market",
    "ModelLike",
    "NotCommanded",
    "Orders",
    "Outputs",
    "Part",
    "Plan",
    "Ready",
    "Receipt",
    "Retrying",
    "Returned",
    "Ruled",
    "Running",
    "Session",
    "Sessions",
    "Signed",
    "Table",
    "Testnet",
    "TextServer",
    "TrainOptions",
    "Training",
    "TrainingResult",
    "TrainingStep",
    "Unpaid",
    "Update",
    "Uploaded",
    "errors",
    "find_binary",
    "run",
    "testnet",
]
__all__ += _models.__all__
__all__ += errors.__all__

__version__ = "0.1.0"

testnet = Testnet


def run(model: ModelLike, inputs: Inputs, **limits: Unpack[Limits]) -> Outputs:
    """Buy, run, wait: the outputs by name, from the gateway that `Client()` finds."""
    with Client() as client:
        return client.run(model, inputs, **limits)
