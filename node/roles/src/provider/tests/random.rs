//! Property tests of a provider's core: after any events in any order, nothing has panicked, and
//! every claim is closed in the end.

use proptest::prelude::*;
use souk_market::{Command, Lease, Term};

use super::world::*;
use crate::lease::{BuyerMessage, Failure, Opening, Request};
use crate::provider::{Action, Event, StreamId};

/// Something that happens.
#[derive(Clone, Debug)]
enum Happening {
    Buy {
        spot: bool,
        millis: u64,
    },
    Start {
        lease: usize,
        kind: Kind,
        last: bool,
        priority: u8,
    },
    Say {
        stream: usize,
        word: u8,
        number: u32,
    },
    Hang {
        stream: usize,
    },
    Resume {
        lease: usize,
    },
    Offer {
        lease: usize,
        request: u32,
        by_buyer: bool,
    },
    Answer {
        place: usize,
        well: bool,
    },
    Settle,
    Pass {
        millis: u64,
    },
    Changed,
    Speed {
        divisor: u64,
    },
    Lose {
        lease: usize,
    },
    EndLease {
        lease: usize,
    },
    Dispute {
        lease: usize,
    },
    Reclaim {
        lease: usize,
    },
    Disk {
        full: bool,
    },
    Restart,
    Stop,
    Hurry,
}

/// What a lease is started for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    OnePart,
    TwoParts,
    FedHere,
    FedFromElsewhere,
}

fn kind() -> impl Strategy<Value = Kind> {
    use Kind::*;
    prop_oneof![
        Just(OnePart),
        Just(TwoParts),
        Just(FedHere),
        Just(FedFromElsewhere)
    ]
}

/// The number of a request: small, or one of the greatest there are.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..6_u32, 1 => u32::MAX - 2..=u32::MAX]
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    let any_lease = 0..8_usize;
    prop_oneof![
        4 => (any::<bool>(), 200..60_000_u64).prop_map(|(spot, millis)| Buy { spot, millis }),
        6 => (any_lease.clone(), kind(), any::<bool>(), 0..3_u8)
            .prop_map(|(lease, kind, last, priority)| Start { lease, kind, last, priority }),
        12 => (0..16_usize, 0..8_u8, number())
            .prop_map(|(stream, word, number)| Say { stream, word, number }),
        2 => (0..16_usize).prop_map(|stream| Hang { stream }),
        2 => any_lease.clone().prop_map(|lease| Resume { lease }),
        3 => (any_lease.clone(), 0..4_u32, any::<bool>())
            .prop_map(|(lease, request, by_buyer)| Offer { lease, request, by_buyer }),
        20 => (0..12_usize, prop::bool::weighted(0.9))
            .prop_map(|(place, well)| Answer { place, well }),
        6 => Just(Settle),
        8 => (1..4_000_u64).prop_map(|millis| Pass { millis }),
        2 => Just(Changed),
        1 => (1..4_u64).prop_map(|divisor| Speed { divisor }),
        1 => any_lease.clone().prop_map(|lease| Lose { lease }),
        1 => any_lease.clone().prop_map(|lease| EndLease { lease }),
        1 => any_lease.clone().prop_map(|lease| Dispute { lease }),
        1 => any_lease.prop_map(|lease| Reclaim { lease }),
        1 => any::<bool>().prop_map(|full| Disk { full }),
        1 => Just(Restart),
        1 => prop::bool::weighted(0.1).prop_map(|stop| if stop { Stop } else { Settle }),
        1 => prop::bool::weighted(0.1).prop_map(|hurry| if hurry { Hurry } else { Settle }),
    ]
}

/// The leases that were bought, and the streams that the buyer has.
#[derive(Default)]
struct Buyer {
    leases: Vec<Lease>,
    streams: Vec<StreamId>,
    /// Those of sessions, whose requests may leave out what is fed.
    sessions: Vec<StreamId>,
}

fn happens(world: &mut World, buyer: &mut Buyer, happening: Happening) {
    let lease = |buyer: &Buyer, place: usize| buyer.leases.get(place).cloned();
    match happening {
        Happening::Buy { spot, millis } => {
            let term = if spot { Term::Spot } else { Term::Firm };
            if buyer.leases.len() < 8 && world.exchange.all_asks().next().is_some() {
                let bought = world.buy(term, millis);
                buyer.leases.push(bought);
            }
        }
        Happening::Start {
            lease: place,
            kind,
            last,
            priority,
        } => {
            let Some(lease) = lease(buyer, place) else {
                return;
            };
            let mut work = match kind {
                Kind::OnePart => start(&lease, last),
                Kind::TwoParts => start_of_two(&lease, last),
                Kind::FedHere => start_of_fed(&lease, None),
                Kind::FedFromElsewhere => start_of_fed(&lease, Some(maker())),
            };
            work.priority = priority;
            let is_session = work.sequences > 0;
            let stream = world.open(Opening::Start(Box::new(work)));
            buyer.streams.push(stream);
            buyer.sessions.extend(is_session.then_some(stream));
        }
        Happening::Say {
            stream,
            word,
            number,
        } => say(world, buyer, (stream, word, number)),
        Happening::Hang { stream } => {
            let Some(stream) = buyer.streams.get(stream) else {
                return;
            };
            if !world.hung.contains(stream) {
                world.hang(*stream);
            }
        }
        Happening::Resume { lease: place } => {
            if let Some(lease) = lease(buyer, place) {
                let stream = world.open(Opening::Resume(lease.id));
                buyer.streams.push(stream);
            }
        }
        Happening::Offer {
            lease: place,
            request,
            by_buyer,
        } => {
            let Some(lease) = lease(buyer, place) else {
                return;
            };
            let peer = account(&key(if by_buyer { 2 } else { 3 }));
            world.open_as(peer, Opening::Offer(offer(&lease, request)));
        }
        Happening::Answer { place, well } => {
            if place < world.pending.len() {
                world.carry_out(place, well);
            }
        }
        Happening::Settle => world.settle_but(is_run),
        Happening::Pass { millis } => world.pass(millis),
        Happening::Changed => world.on(Event::Changed),
        other => happens_around(world, buyer, other),
    }
}

fn happens_around(world: &mut World, buyer: &Buyer, happening: Happening) {
    let key = world.buyer.clone();
    let known = |place: usize| buyer.leases.get(place).map(|lease| lease.id);
    match happening {
        Happening::Speed { divisor } => {
            let placed = world.commands.iter().find_map(|command| match command {
                Command::PlaceAsk(ask) => Some(ask.resources.clone()),
                _ => None,
            });
            if let Some(mut resources) = placed {
                resources.memory_bandwidth /= divisor;
                world.on(Event::SpeedDue(Box::new(resources)));
            }
        }
        Happening::Lose { lease } => {
            let Some(lease) = known(lease) else { return };
            let fault = Failure::Crashed("played".to_owned());
            world.on(Event::SandboxLost { lease, fault });
        }
        Happening::EndLease { lease } => {
            let Some(lease) = known(lease) else { return };
            let _ = world.carry(&key, Command::EndLease { lease });
        }
        Happening::Dispute { lease } => {
            let Some(lease) = known(lease) else { return };
            let _ = world.carry(&key, Command::Dispute { lease });
        }
        Happening::Reclaim { lease } => {
            let Some(lease) = known(lease) else { return };
            let provider = super::world::key(1);
            let _ = world.carry(&provider, Command::Reclaim { lease });
        }
        Happening::Disk { full } => world.is_disk_full = full,
        Happening::Restart => world.restart(),
        Happening::Stop => world.on(Event::Stop),
        Happening::Hurry => world.on(Event::Hurry),
        other => unreachable!("{other:?} happens elsewhere"),
    }
}

fn say(world: &mut World, buyer: &Buyer, (stream, word, number): (usize, u8, u32)) {
    let Some(stream) = buyer.streams.get(stream).copied() else {
        return;
    };
    if world.hung.contains(&stream) {
        return;
    }
    let has_finished = world.messages(stream).iter().any(|word| word == "finished");
    let word = match word {
        0 | 1 => BuyerMessage::Go,
        2 | 3 if buyer.sessions.contains(&stream) => BuyerMessage::Next(step(number, word == 2)),
        2 | 3 => BuyerMessage::Next(request(number)),
        4 => BuyerMessage::NoMore,
        5 => BuyerMessage::Limit {
            parts: number.min(2),
        },
        6 if has_finished => return world.sign(stream),
        6 => BuyerMessage::NoMore,
        _ => BuyerMessage::Refused {
            reason: "no".to_owned(),
        },
    };
    world.say(stream, word);
}

/// A request of a session, which leaves out what is fed if it may.
fn step(number: u32, leaves_out: bool) -> Request {
    let mut request = request(number);
    request.sequence = u32::from(number == 3);
    if leaves_out {
        request.inputs.clear();
    }
    request
}

/// Whatever happened, all is well from now on, and after a while nothing is open.
fn heal(world: &mut World) {
    world.is_disk_full = false;
    if world.is_over {
        world.restart();
    }
    world.settle();
    // Buyers that hold their streams for ever are over when their leases are.
    for _ in 0..6 {
        world.live(60_000);
        if world.is_over {
            world.restart();
        }
    }
    world.settle();
    world.assert_at_rest();
    let pending: Vec<&Action> = world.pending.iter().map(|effect| &effect.action).collect();
    assert!(pending.is_empty(), "{pending:?}");
}

proptest! {
    #[test]
    fn whatever_happens_every_lease_is_begun_once_and_closed_in_the_end(
        happenings in prop::collection::vec(happening(), 1..120),
        slots in 1..4_u32,
    ) {
        let mut world = World::selling();
        world.slots = slots;
        let mut buyer = Buyer::default();
        for happening in happenings {
            if world.is_over {
                world.restart();
            }
            happens(&mut world, &mut buyer, happening);
        }
        heal(&mut world);
        world.exchange.audit();
    }
}
