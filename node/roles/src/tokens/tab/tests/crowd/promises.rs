//! What tabs promise, whatever happens: an honest side loses at most one request a unit, each tab
//! is settled, and each slot is sold again.

use souk_market::CloseReason;

use super::*;

/// The steps of a history, before time goes on until all is settled.
const STEPS: u32 = 1_500;

/// The device time of the longest request.
const REQUEST_MAX: DeviceMicros = DeviceMicros(INPUT_MAX * 250 + OUTPUT_MAX * 1_000);

/// How long after the last step each lease is closed: the longest one, the time for a receipt and
/// for notes, and for a buyer that does not answer.
const SETTLED_AFTER_S: u64 = 300 + 120 + 2 * 60 + 30;

fn due(lease: &Lease, usage: DeviceMicros) -> u64 {
    let due = ReceiptBody::amount_due(lease.price, usage);
    due.expect("it fits").0
}

/// What a closed lease brought its provider, with the market's share.
fn gross(lease: &Lease) -> u64 {
    match lease.state {
        LeaseState::Closed {
            paid, fee, reason, ..
        } if reason != CloseReason::Disputed => paid.0 + fee.0,
        LeaseState::Closed { paid, .. } => paid.0,
        _ => panic!("{:?}", lease.state),
    }
}

impl Crowd {
    fn play(seed: u64) -> Crowd {
        let mut crowd = Crowd::new(seed);
        for _ in 0..STEPS {
            crowd.step();
        }
        for place in 0..crowd.tabs.len() {
            crowd.on(place, TabEvent::Close);
        }
        crowd.live(SETTLED_AFTER_S);
        if crowd.dead_until.is_some() {
            crowd.dead_until = Some(crowd.world.now.tick);
            crowd.live(SETTLED_AFTER_S);
        }
        crowd
    }

    fn check(&mut self) {
        self.world.exchange.audit();
        for place in 0..self.tabs.len() {
            self.check_tab(place);
        }
        let open = self
            .world
            .exchange
            .leases()
            .find(|lease| !lease.is_closed());
        assert_eq!(open, None, "each lease is settled");
        for buyer in BUYERS {
            let known = self.world.exchange.account(account(&key(buyer)));
            assert_eq!(
                known.expect("it buys").escrow,
                Credits(0),
                "nothing is held"
            );
        }
        let free: u32 = self.world.exchange.all_asks().map(|it| it.quantity.0).sum();
        assert_eq!(free, SLOTS, "each slot is sold again");
    }

    fn check_tab(&mut self, place: usize) {
        let tab = &self.tabs[place];
        let lease = tab
            .lease
            .and_then(|id| self.world.exchange.lease(id))
            .cloned();
        if tab.core.is_some() {
            let outcome = tab.outcome.as_ref().expect("a tab ends");
            let answered = tab.delivered + tab.failures.len() as u32;
            assert_eq!(
                answered, tab.asked,
                "each request is answered or failed once"
            );
            assert_eq!(outcome.counted, tab.seen, "what came is counted");
        }
        let Some(lease) = lease else {
            return;
        };
        if tab.manner == BuyerManner::Honest {
            self.check_buyer(tab, &lease);
            self.note_event("a buyer was honest");
        }
        let tab = &self.tabs[place];
        let is_able = !self.has_lost_time && !self.has_lost_disk;
        let is_able = is_able && !self.interrupted.contains(&lease.id);
        if self.manner == ProviderManner::Honest && is_able {
            self.check_provider(tab, &lease);
            self.note_event("a provider was honest");
        }
    }

    /// An honest buyer pays its provider for at most one request more than it saw, and for the time
    /// in which it held the slot.
    fn check_buyer(&self, tab: &PlayedTab, lease: &Lease) {
        let held = lease.usage_possible(self.world.now.log);
        let floor = DeviceMicros(held.0 / 1_000_000 * u64::from(self.terms.floor_us));
        let outcome = tab.outcome.as_ref().expect("it is over");
        if let Some(receipt) = &outcome.receipt {
            let body = &receipt.body;
            assert!(
                body.usage <= tab.seen.max(floor).max(DeviceMicros(1)),
                "{body:?}"
            );
            assert_eq!((&body.model, body.price), (&lease.model, lease.price));
        }
        let most = DeviceMicros(tab.seen.0 + REQUEST_MAX.0).max(floor);
        let accepted = lease.accepted;
        assert!(
            accepted <= most,
            "{accepted} is paid of {}, {:?}",
            tab.seen,
            outcome
        );
        let most = due(lease, most) + due(lease, lease.idle_counts(held)) + 1;
        let paid = gross(lease);
        assert!(paid <= most, "{paid} is more than {most}: {outcome:?}");
        // What it refuses, the market keeps: as much as the slot costs for that time at most.
        assert!(lease.cost.0 <= most.max(due(lease, held)), "{outcome:?}");
    }

    /// An honest provider loses at most one request. What a buyer refuses costs the buyer as much.
    fn check_provider(&self, tab: &PlayedTab, lease: &Lease) {
        let made = self.made.get(&lease.id).copied().unwrap_or_default();
        let owed = DeviceMicros(made.0.saturating_sub(REQUEST_MAX.0));
        let got = match tab.manner {
            BuyerManner::Disputes | BuyerManner::Cuts | BuyerManner::HidesWork => lease.cost.0,
            _ => gross(lease),
        };
        let owed = due(lease, owed);
        let outcome = &tab.outcome;
        assert!(
            got + 1 >= owed,
            "{:?} got {got} of {owed}: {outcome:?} {lease:?}",
            tab.manner
        );
    }
}

/// Plays histories. Returns how often what happened.
fn play_seeds(seeds: std::ops::Range<u64>) -> BTreeMap<&'static str, u32> {
    let (mut events, mut broken) = (BTreeMap::new(), Vec::<u64>::new());
    for seed in seeds {
        let played = std::panic::catch_unwind(|| {
            let mut crowd = Crowd::play(seed);
            crowd.check();
            crowd
        });
        let Ok(crowd) = played else {
            broken.push(seed);
            continue;
        };
        for (name, count) in &crowd.events {
            *events.entry(*name).or_default() += count;
        }
        for tab in &crowd.tabs {
            *events.entry("tabs").or_default() += 1;
            *events.entry("answers").or_default() += tab.delivered;
            let outcome = tab.outcome.as_ref();
            let is_signed = outcome.is_some_and(|it| it.receipt.is_some());
            *events.entry("receipts").or_default() += u32::from(is_signed);
            let is_refused =
                outcome.is_some_and(|it| matches!(it.failure, Some(TabFailure::Bill(_))));
            *events.entry("refused bills").or_default() += u32::from(is_refused);
        }
    }
    assert_eq!(
        broken,
        Vec::<u64>::new(),
        "these seeds break a promise: see above"
    );
    events
}

#[test]
fn no_honest_side_of_a_tab_loses_more_than_a_request() {
    let events = play_seeds(0..200);
    assert!(events.values().all(|count| *count >= 10), "{events:?}");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn thousands_of_histories_of_tabs_keep_what_they_promise() {
    let events = play_seeds(200..2_200);
    assert!(events.values().all(|count| *count >= 100), "{events:?}");
}
