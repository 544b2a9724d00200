"""What the gateway answers. Made by models.py from docs/openapi.json, not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias, TypedDict

from ._credits import Credits
from ._table import Table

__all__ = [
    "Account",
    "Amount",
    "Ask",
    "Balances",
    "BidTerms",
    "BoughtLease",
    "Cancelled",
    "Candle",
    "Candles",
    "ClosedLease",
    "Depth",
    "Device",
    "Earning",
    "EarningStep",
    "Earnings",
    "FetchedEvent",
    "FinishedEvent",
    "Graph",
    "GraphEdge",
    "GraphPart",
    "JobFacts",
    "JobState",
    "Lease",
    "LeasedEvent",
    "Level",
    "Limits",
    "Link",
    "LossPoint",
    "Map",
    "MarketClass",
    "Movement",
    "Node",
    "NodeDevice",
    "NotCommandedEvent",
    "OfferedDevice",
    "OperationPrices",
    "Order",
    "OutputFacts",
    "Placed",
    "PlacedTrade",
    "PriceIndex",
    "Provider",
    "ProviderDetail",
    "ReadyEvent",
    "RefusedEvent",
    "Replica",
    "RetryingEvent",
    "ReturnedEvent",
    "RunningEvent",
    "Selling",
    "SessionFacts",
    "SessionTerms",
    "SignedEvent",
    "Sold",
    "SpotPrice",
    "Status",
    "TextKey",
    "TextOffer",
    "Throughput",
    "TokenPrice",
    "Totals",
    "Trade",
    "Trades",
    "TrainingFacts",
    "TrainingState",
    "Validator",
    "Verdict",
]

Amount: TypeAlias = Credits | Decimal | float | str
"""An amount of credits, as one may give it."""

WIRE_NAMES = {"class_name": "class", "source": "from", "target": "to"}
"""What fields are called on the wire, where that is another word."""


class Limits(TypedDict, total=False):
    """What a job is held to. Times are in seconds."""

    budget: Amount | None
    """The most that the job can cost, failed attempts included."""
    deadline: float | None
    """The most it may take."""
    devices: Sequence[str]
    """Kinds of devices, or parts of their names, any of which will do."""
    emulated: bool
    """Whether to use emulated devices too; in a testnet this is the default."""
    exclude: Sequence[str]
    """Accounts not to buy from."""
    max_price: Amount | None
    """The highest price of a device-second."""
    max_providers: int
    """At most so many providers. Else 4."""
    max_time: float
    """The longest time of a run whose length nobody knows beforehand. Else 600.0."""
    min_notice: float
    """The least notice before a device is taken back."""
    min_providers: int
    """At least so many providers. Else 1."""
    min_reputation: int
    """From 0 to 1000."""
    prefer: str
    """`balanced`, `fastest`, `cheapest` or `greenest`. Else balanced."""
    priority: str | None
    """Which of this account's own jobs goes first: `low`, `normal` or `high`."""
    real: bool
    """Only devices that are really there: in a testnet, too."""
    regions: Sequence[str]
    """Regions, such as `europe-west`; `europe` is all that begin so."""
    spot: bool
    """Whether to use spot leases, which their provider can end early."""
    verify: int
    """On how many providers each part runs, 1 or 2: with two, results are compared. Else 1."""
    wait: float
    """How long to wait for devices. Else 5.0."""


class BidTerms(TypedDict, total=False):
    """What a bid is held to. Times are in seconds."""

    all_or_none: bool
    """Nothing trades unless all of it can at once."""
    budget: Amount | None
    """The most that all its leases may cost; else what the price comes to."""
    displace: float
    """Displace spot leases of lower bids whose notice is at most so long."""
    duration: float
    """How long each lease is. Else 60.0."""
    exclude: Sequence[str]
    """Accounts not to buy from."""
    min_memory: int
    """At least so many bytes of memory."""
    min_notice: float
    """The least notice before a device is taken back."""
    min_reputation: int
    """From 0 to 1000."""
    min_stake: Amount
    """What the provider has at stake at least."""
    regions: Sequence[str]
    """Regions, such as `europe-west`; `europe` is all that begin so."""
    rest: float | None
    """How long it rests."""
    spot: bool
    """Bid for leases that a higher bid or the provider may end with notice."""
    tif: str | None


class SessionTerms(TypedDict, total=False):
    """The limits of a session of a language model. Times are in seconds."""

    budget: Amount | None
    """The maximum cost of the session, including leases whose providers failed."""
    context: int | None
    """The number of positions of each text, including the prompt."""
    devices: Sequence[str]
    """Kinds of devices, or parts of their names; one match suffices."""
    embeddings: bool
    """Embed texts instead of continuing them."""
    emulated: bool
    """Also use emulated devices. Only buyers in a testnet use them by default."""
    keep_alive: float
    """How long the session keeps its leases without a request. Else 60.0."""
    max_providers: int
    """The maximum number of providers. Else 1."""
    min_providers: int
    """The minimum number of providers over which to cut the model. Else 1."""
    prefer: str
    """`balanced`, `fastest`, `cheapest` or `greenest`. Else fastest."""
    sequences: int
    """The number of requests to answer at once. Else 8."""
    tokens: int
    """The number of tokens for which souk buys at a time. Else 1024."""
    verify: int
    """With 2, two sessions without a common provider compute each token, and a third decides if
    they differ. Else 1.
    """
    wait: float
    """How long to wait for devices that others have leased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account. Amounts are in micro-credits."""

    account: str
    """Its key."""
    name: str
    """Its name for people."""
    available: Credits
    """What it can spend."""
    escrow: Credits
    """What its orders, leases and withdrawals hold."""
    stake: Credits
    """What it has at stake."""
    earned: Credits
    """What it has earned as a provider."""
    open_orders: int
    """How many of its orders rest in the books."""
    leases_sold: int
    """How many leases that it sold are not closed."""
    leases_bought: int
    """How many leases that it bought are not closed."""
    reputation: int
    """From 0 to 1000."""
    frozen: str | None = None
    """Why it is frozen; null if it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPrice:
    """The price of spot leases with a notice."""

    notice: float
    """Seconds of notice."""
    price: Credits
    """Credits per device-second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """A figure for each element type."""

    f64: int
    f32: int
    f16: int
    bf16: int
    int8: int
    int4: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """An offer."""

    order: int
    """The ask's id."""
    provider: str
    """The provider's account."""
    provider_name: str
    """The provider's name."""
    reputation: int
    """The provider's reputation, from 0 to 1000."""
    stake: Credits
    """What the provider has at stake."""
    class_name: str
    """The class that a bid must name to match it."""
    kind: str
    """The kind of the device, such as `gpu`."""
    device: str
    """The name of the device model."""
    emulated: bool
    """Whether the device is emulated."""
    price: Credits
    """Credits per device-second."""
    spot: Table[SpotPrice]
    """Lower prices of spot leases, by notice."""
    units: int
    """How many units remain."""
    memory_bytes: int
    """Memory of a unit."""
    memory_bandwidth: int
    """Bytes per second."""
    throughput: Throughput
    """Mega-operations per second."""
    power_milliwatts: int
    """Milliwatts under load; 0 if it is unknown."""
    region: str
    """Where the device is, such as `europe-west`."""
    duration_min: float
    """The shortest lease, in seconds."""
    duration_max: float
    """The longest lease, in seconds."""
    notice: float
    """Seconds of notice before its provider or a higher bid can take a spot lease back."""
    resale_of: int | None = None
    """The lease of which it sells the rest, if a buyer resells one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balances:
    """What an account has."""

    available: Credits
    """What it can spend."""
    escrow: Credits
    """What its orders, leases and withdrawals hold."""
    stake: Credits
    """What it has at stake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoughtLease:
    """A lease that the buyer bought."""

    provider: str
    """The account that sold it."""
    lease: int
    """The number of the lease."""
    escrow: Credits
    """What it holds until it is settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPrices:
    """A figure for each element type."""

    f64: int | None
    f32: int | None
    f16: int | None
    bf16: int | None
    int8: int | None
    int4: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """An order that was cancelled."""

    order: int
    """The order's id."""
    released: Credits
    """What it held and is available again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candle:
    """The prices of a class in one span of time per device-second."""

    start: datetime
    """When it begins, RFC 3339."""
    open: Credits
    """The price of the first trade."""
    high: Credits
    """The highest price."""
    low: Credits
    """The lowest price."""
    close: Credits
    """The price of the last trade."""
    units: int
    """How many units were traded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candles:
    """The prices of a class over time."""

    class_name: str
    """The name of the class."""
    step: int
    """Seconds in a candle."""
    candles: Table[Candle]
    """The oldest first; times without a trade have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """All orders of one side of a book at one price."""

    price: Credits
    """Credits per device-second."""
    orders: int
    """How many orders there are."""
    units: int
    """How many units they have together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceIndex:
    """Prices of measured work over the last 64 trades, in nano-credits; null if no traded device
    does such work.
    """

    per_tera_operation: OperationPrices
    """A tera-operation, by element type."""
    per_gigabyte_hour: int | None = None
    """A gigabyte that is held for an hour."""
    per_gigabyte_moved: int | None = None
    """A gigabyte that is moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """A trade."""

    at: datetime
    """When it happened, RFC 3339."""
    price: Credits
    """Credits per device-second."""
    units: int
    """How many units were traded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketClass:
    """A class at a glance."""

    class_name: str
    """Its name, such as `gpu-m5-t7-b6-emulated`."""
    bands: str
    """The ranges of its bands of memory, throughput and bandwidth."""
    emulated: bool
    """Whether its devices are emulated."""
    volume: int
    """How many units were traded within a day."""
    index: PriceIndex
    """The prices of measured work."""
    ask: Level | None = None
    bid: Level | None = None
    last: Trade | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLease:
    """A lease that is closed, of which the market may know no more."""

    lease: int
    """The number of the lease."""
    at: datetime
    """When it closed."""
    buyer: str
    """The account that bought it."""
    provider: str
    """The account that sold it."""
    reason: str
    """Why it ended, such as `receipt` or `deadline`."""
    paid: Credits
    """What its provider got."""
    fee: Credits
    """What the market took."""
    refunded: Credits
    """What its buyer got back."""
    class_name: str | None = None
    """The class of the device; null once the market has forgotten the lease."""
    device: str | None = None
    """The name of the device model; null once the market has forgotten the lease."""
    device_time: float | None = None
    """Seconds of its devices that were paid; null once the market has forgotten the lease."""
    emulated: bool | None = None
    """Whether the device is emulated; null once the market has forgotten the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The book of a class."""

    class_name: str
    """The name of the class."""
    bands: str
    """The ranges of its bands of memory, throughput and bandwidth."""
    emulated: bool
    """Whether its devices are emulated."""
    asks: Table[Level]
    """By rising price."""
    bids: Table[Level]
    """By falling price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device on offer."""

    device: str
    emulated: bool
    price: Credits
    """The least price that is asked a device-second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earning:
    """What was earned."""

    leases: int
    """Leases that closed."""
    paid: Credits
    """What the account got."""
    device_time: float
    """Seconds of its devices that were paid, of leases that the market has not forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarningStep:
    """What was earned in a step by devices of a class."""

    leases: int
    """Leases that closed."""
    paid: Credits
    """What the account got."""
    device_time: float
    """Seconds of its devices that were paid, of leases that the market has not forgotten."""
    start: datetime
    """When it begins, RFC 3339."""
    class_name: str | None = None
    """The class; null where the market has forgotten the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earnings:
    """What an account earned."""

    account: str
    step: int
    """Seconds in a step."""
    source: datetime
    """When the first step begins, and when this was put together; RFC 3339."""
    as_of: datetime
    total: Earning
    """All steps together."""
    steps: Table[EarningStep]
    """The oldest first; for each class one, and none where nothing was earned."""
    complete: bool
    """Whether all leases of the time are counted: those of a very busy account may be too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedEvent:
    """A provider has everything that it needs from the buyer."""

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""
    provider: str
    """The account of the provider."""
    pieces: int
    """How many pieces it needed."""
    pieces_cached: int
    """How many of them it already had."""
    bytes: int
    """How many bytes it received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEvent:
    """A provider finished its parts."""

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""
    provider: str
    """The account of the provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEdge:
    """A tensor on its way."""

    tensor: str
    bytes: int | None = None
    """Null where that is known only when the job runs."""
    source: int | None = None
    """The part that makes it; null for an input of the job."""
    target: int | None = None
    """The part that reads it; null for an output of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """A part: what one provider runs at once."""

    part: int
    """Its number, from 1."""
    nodes: int
    """Operations in it."""
    flops: int
    provider: str
    """Who runs it by the plan."""
    device: str
    emulated: bool
    start_seconds: float
    """When it runs by the plan, in seconds from the job's begin."""
    finish_seconds: float
    micro_credits: Credits
    """What it costs by the plan."""
    critical: bool
    """Whether the plan's time is that of this part."""
    operators: Mapping[str, Any] | None = None
    """How many there are of each operator."""
    provider_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A job's parts, and the tensors between them, as its plan has them."""

    parts: Table[GraphPart]
    edges: Table[GraphEdge] | None = None
    """Empty where an older souk submitted the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job."""

    id: str
    """The id of the job."""
    state: str
    begun_at: datetime
    """RFC 3339."""
    model: str
    """The content that is the model, or the path of its file."""
    requests_answered: int
    """Requests that are answered."""
    attempts: int
    """How often leases were bought for it."""
    paid: Credits
    """The sum of its receipts so far."""
    providers: tuple[str, ...]
    """The providers that it bought from."""
    runs_here: bool
    """Whether this gateway runs it."""
    cause: str | None = None
    """Why it failed, in a sentence."""
    reason: str | None = None
    """Why it failed, as a word that never changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease."""

    lease: int
    """The number of the lease."""
    buyer: str
    """The account that bought it."""
    provider: str
    """The account that sold it."""
    device: str
    """The name of the device model."""
    class_name: str
    """The class of the device."""
    emulated: bool
    """Whether the device is emulated."""
    state: str
    """`waiting`, `active`, `ending`, `due` or `closed`."""
    term: str
    """`firm` or `spot`."""
    notice: float
    """Seconds of notice before its provider or a higher bid can take the device back."""
    price: Credits
    """Credits per device-second."""
    units: int
    """How many units of the device it has."""
    cost: Credits
    """What the buyer paid for it; 0 before it is closed."""
    escrow: Credits
    """What it holds until it is settled."""
    starts_at: datetime
    """When it starts."""
    ends_at: datetime
    """When it ends, or ended."""
    job: str
    """The id of the job that it was bought for."""
    closes_at: datetime | None = None
    """When it closes if no receipt settles it before; null before its device is free."""
    fee: Credits | None = None
    """The market's fee; null before it is closed."""
    paid: Credits | None = None
    """What its provider got of that, without the market's fee; null before it is closed."""
    reason: str | None = None
    """Why it ended or will end, such as `receipt` or `deadline`; null while nothing ends it."""
    refunded: Credits | None = None
    """What its buyer got back; null before it is closed."""
    resale_order: int | None = None
    """The ask by which its buyer resells the rest of it."""
    successor: int | None = None
    """The lease that displaced it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """An output."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blake3: str
    """The BLAKE3 of the tensor, which its receipt names."""
    bytes: int
    meaning: str | None = None
    """What its numbers stand for, if not for themselves: `Accept: application/json` gives that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job with its leases and outputs."""

    id: str
    """The id of the job."""
    state: str
    begun_at: datetime
    """RFC 3339."""
    model: str
    """The content that is the model, or the path of its file."""
    requests_answered: int
    """Requests that are answered."""
    attempts: int
    """How often leases were bought for it."""
    paid: Credits
    """The sum of its receipts so far."""
    providers: tuple[str, ...]
    """The providers that it bought from."""
    runs_here: bool
    """Whether this gateway runs it."""
    spent: Credits
    """What its leases have cost."""
    escrow: Credits
    """What its leases still hold in escrow."""
    leases: Table[Lease]
    outputs: Table[OutputFacts]
    cause: str | None = None
    """Why it failed, in a sentence."""
    reason: str | None = None
    """Why it failed, as a word that never changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedEvent:
    """The buyer bought the leases of an attempt."""

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""
    attempt: int
    """How many attempts came before."""
    leases: Table[BoughtLease]
    """The leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection between two participants, in one direction. Figures that were not measured
    are null.
    """

    source: str
    target: str
    bytes_per_second: float | None = None
    round_trip: float | None = None
    """Seconds from a request to the first byte of the answer."""
    route: str | None = None
    """`direct` or `relayed`; null where this gateway has no connection."""
    used_at: datetime | None = None
    """When it was used last, RFC 3339."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """A loss after some steps."""

    step: int
    """The number of steps done."""
    loss: float | None = None
    """The loss; null if it is infinite or no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevice:
    """A device of a provider."""

    device: str
    kind: str
    class_name: str
    emulated: bool
    price: Credits
    """Credits a device-second."""
    units: int
    """How many are on offer."""
    memory_bytes: int
    memory_bandwidth: int
    """Bytes a second."""
    throughput: Throughput
    """Mega-operations a second."""
    power_milliwatts: int
    """Milliwatts under load; 0 where it is unknown."""
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A participant of the market."""

    account: str
    role: str
    name: str
    devices: Table[NodeDevice]
    """What a provider has on offer, or had last."""
    age: float | None = None
    """Seconds since a validator answered or a provider had an ask in the book; null if neither
    has happened.
    """
    applied: int | None = None
    busy: float | None = None
    """The leased share of its units, from 0 to 1."""
    leads: bool | None = None
    leases: int | None = None
    """Leases that it sold and that are not closed."""
    reputation: int | None = None
    """Its reputation from 0 to 1000; null if it is not a provider."""
    stake: Credits | None = None
    """What it has at stake."""
    validator: int | None = None
    """A validator's number, whether it leads, and how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """The participants of the market, and the connections between them."""

    index: int
    """The last entry of the log that is applied, as far as any validator says."""
    as_of: datetime
    """When the gateway made this map, in RFC 3339."""
    nodes: Table[Node]
    """The gateway's own account first, then validators, then providers, the cheapest first."""
    providers_omitted: int
    """Providers beyond 200, which are left out."""
    links: Table[Link]


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """A movement of an account's credits."""

    place: str
    """Where in the log it is."""
    at: datetime
    """When it happened."""
    before: Balances
    """What the account had."""
    after: Balances
    """What the account has since."""
    causes: tuple[Mapping[str, Any], ...]
    """What caused it: events of the market."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCommandedEvent:
    """The market did not carry out a command to end, dispute or begin a lease; its own rules
    will close the lease.
    """

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""
    lease: int
    """The lease of the command."""
    cause: str
    """The reason of the market."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """A device that one or more providers offer."""

    device: str
    kind: str
    emulated: bool
    classes: tuple[str, ...]
    """The classes it is traded in."""
    providers: int
    """How many providers offer it, and how many of it."""
    units: int
    price_min: Credits
    """The least and the most that is asked a device-second."""
    price_max: Credits
    memory_bytes: int
    """Figures of the cheapest."""
    memory_bandwidth: int
    """Bytes a second."""
    throughput: Throughput
    """Mega-operations a second."""
    power_milliwatts: int
    """Milliwatts under load; 0 where it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order that rests in a book."""

    order: int
    """The order's id."""
    side: str
    """`bid` or `ask`."""
    class_name: str
    """The class in whose book it rests."""
    price: Credits
    """Credits per device-second."""
    units: int
    """How many units remain."""
    held: Credits
    """What it holds."""
    expires_at: datetime | None = None
    """When it leaves the book; null if only its owner ends it."""
    resale_of: int | None = None
    """The lease of which it resells the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTrade:
    """A lease that an order became."""

    lease: int
    """The number of the lease."""
    provider: str
    """The account that sells it."""
    price: Credits
    """Credits per device-second."""
    units: int
    """How many units of the device it has."""
    held: Credits
    """What it holds."""
    starts_at: datetime
    """When it starts."""
    ends_at: datetime
    """When it ends at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The result of an order that was placed or changed."""

    order: int
    """The order's id: a new one if a change lost it its place in line."""
    trades: Table[PlacedTrade]
    """The trades that it made at once."""
    resting: int
    """How many units rest in the book."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderDetail:
    """An account, and what it offers."""

    account: Account
    asks: Table[Ask]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Who has something on offer."""

    account: str
    name: str
    reputation: int
    """From 0 to 1000."""
    stake: Credits
    devices: Table[Device]
    """What is on offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyEvent:
    """A provider has compiled its parts."""

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""
    provider: str
    """The account of the provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedEvent:
    """The buyer does not pay for a lease."""

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""
    provider: str
    """The account of the provider."""
    cause: str
    """The reason that the buyer states to the provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """How far a validator is."""

    role: str
    """`leader`, `follower`, `candidate` or `learner`."""
    leader: int
    """The id of the leader that it knows; 0 if it knows none."""
    term: int
    """Its term."""
    committed: int
    """The last entry that a quorum is known to have."""
    applied: int
    """The last entry that it has applied."""
    digest: str
    """The digest of its state at `applied`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryingEvent:
    """A provider failed; the job continues without it."""

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""
    provider: str
    """The account of the provider."""
    reason: str
    """The reason as a code."""
    cause: str
    """The reason as a sentence."""
    values_kept: int
    """How many computed values the job keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedEvent:
    """The outputs arrived and are checked; they are not yet paid for."""

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEvent:
    """A provider's device runs a part."""

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""
    provider: str
    """The account of the provider."""
    part: str
    """The part, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selling:
    """The change to a provider's offer."""

    price: Credits
    """Its new price a device-second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """An open session of a language model."""

    id: str
    """Its id."""
    model: str
    """The name of its model."""
    opened: datetime
    """When it was opened, RFC 3339."""
    base_url: str
    """The base address for OpenAI's clients; the key is a token of the gateway that may trade."""
    answered: int
    """The number of requests that it answered."""
    failed: int
    """The number of requests that failed."""
    paid: Credits
    """The amount that receipts of its ended leases state."""
    leases: tuple[int, ...]
    """The leases that it has ended and paid."""
    budget: Credits | None = None
    """The maximum cost; `null` if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedEvent:
    """A receipt has both signatures."""

    number: int
    """The number of the event, from 0."""
    at: datetime
    """When it happened, RFC 3339."""
    provider: str
    """The account that the receipt pays."""
    lease: int
    """The lease of the receipt."""
    paid: Credits
    """What the receipt pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sold:
    """The result of a change."""

    account: str
    price: Credits
    """Credits a device-second."""
    previous_price: int
    """The price before the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the market and of the gateway."""

    market: str
    """The market's id."""
    name: str
    """Its name."""
    version: str
    """The version of this souk."""
    account: str
    """The account of the gateway."""
    scope: str
    """The scope of the token of this request: `read`, `trade` or `operate`."""
    index: int
    """The last entry of the log that is applied, as far as any validator says."""
    as_of: datetime
    """When that was asked, RFC 3339."""
    validators_answering: int
    """Validators that answer, and that are known."""
    validators_known: int
    jobs_running: int
    """Jobs that this gateway runs."""
    streams: int
    """Streams of events that are open."""
    leader: int | None = None
    """The raft id of the leading validator; null if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKey:
    """An API key, with its limits and its use."""

    name: str
    """The name that its issuer gave it."""
    id: str
    """Its id: the first digits of its hash."""
    revoked: bool
    """Whether it was revoked."""
    issued_at: datetime
    """When it was issued."""
    budget_resets: str
    """When the budget resets: `never`, or at each new `day` or `month` in UTC."""
    models: tuple[str, ...]
    """The models that it can use; a trailing `*` matches any suffix. If empty, all models."""
    requests_at_once: int
    """Maximum number of requests that are open at once."""
    spent: Credits
    """Total cost of its requests."""
    period_spent: Credits
    """Cost of its requests in the current day or month."""
    held: Credits
    """Amount reserved for its open requests."""
    requests: int
    """Number of its requests for which an amount was reserved."""
    input_tokens: int
    """Number of input tokens of these requests."""
    output_tokens: int
    """Number of output tokens of these requests."""
    budget: Credits | None = None
    """Maximum that it can spend; none if it has no limit of its own."""
    left: Credits | None = None
    """Rest of the budget; none without a budget."""
    requests_per_minute: int | None = None
    """Maximum number of requests per minute; none if unlimited."""
    tokens_per_minute: int | None = None
    """Maximum number of tokens per minute; none if unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """The prices of tokens a million."""

    input_per_million: Credits
    """The price of a million input tokens that are not cached."""
    cached_per_million: Credits
    """The price of a million cached input tokens."""
    output_per_million: Credits
    """The price of a million output tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOffer:
    """One offer of a model."""

    model: str
    """The model."""
    ask: int
    """The number of the ask."""
    provider: str
    """The provider's account."""
    provider_name: str
    """The name under which the provider registered."""
    reputation: int
    """The provider's reputation, 0 to 1000."""
    free_slots: int
    """How many more buyers can be answered at once."""
    resold: bool
    """Whether the provider says that it does not run the engine itself."""
    price: TokenPrice
    """The prices a million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All credits; available + escrow + stake + fees = deposits - withdrawals."""

    deposits: Credits
    """What ever came in."""
    withdrawals: Credits
    """What ever went out."""
    available: Credits
    """What the accounts can spend."""
    escrow: Credits
    """What orders, leases and withdrawals hold."""
    stake: Credits
    """What providers have at stake."""
    fees: Credits
    """What the market has earned and nobody has collected."""
    balanced: bool
    """Whether the sums agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trades:
    """The last trades of a class."""

    class_name: str
    """The name of the class."""
    trades: Table[Trade]
    """The newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """A run of training."""

    id: str
    """What it is called."""
    state: str
    begun_at: datetime
    """RFC 3339."""
    result: str
    """The path of its result."""
    steps_done: int
    """Steps that count: those after the last kept parameters do not."""
    steps: int
    """Steps in all."""
    spent: Credits
    """What its leases have cost or can still cost, without one that is open."""
    receipts: int
    """Receipts of its leases, each signed by both sides."""
    held_out_loss: float | None = None
    """The last loss of the held-out examples."""
    loss: float | None = None
    """The loss of the last of them; null if it is no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """A run of training with its losses."""

    id: str
    """What it is called."""
    state: str
    begun_at: datetime
    """RFC 3339."""
    result: str
    """The path of its result."""
    steps_done: int
    """Steps that count: those after the last kept parameters do not."""
    steps: int
    """Steps in all."""
    spent: Credits
    """What its leases have cost or can still cost, without one that is open."""
    receipts: int
    """Receipts of its leases, each signed by both sides."""
    curve: Table[LossPoint]
    """The losses of its steps: at most 240 points, each the mean of equally many steps."""
    held_out: Table[LossPoint]
    """The losses of the held-out examples: at most 240 points, the first and the last among
    them.
    """
    held_out_loss: float | None = None
    """The last loss of the held-out examples."""
    loss: float | None = None
    """The loss of the last of them; null if it is no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """A validator and its own report."""

    id: int
    """Its id in the replicated log."""
    account: str
    """Its account."""
    address: str
    """Its address, which ends in its peer id."""
    standing: str
    """`waiting`, `learner`, `voter`, `leaving` or `removed`."""
    status: Replica | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a verification."""

    valid: bool
    """Whether its arithmetic and both signatures hold."""
    fault: str | None = None
    """The fault, if it is not valid."""
