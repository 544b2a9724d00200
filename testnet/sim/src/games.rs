//! What a party can be made to lose, found by trying everything the other one can do.
//!
//! One lease is played on the real exchange, a step of ten seconds at a time. One party does what a
//! node of souk does; the other may do at each step whatever the rules let it, or nothing. All its
//! ways are followed to the end (those that come to the same state once), so the loss told is the
//! worst there is, at this step of time.

use std::collections::HashMap;

use serde::Serialize;
use souk_market::{
    Accepts, AccountKey, Ask, Batch, Bid, Command, Credits, DeviceId, DeviceMicros, Exchange,
    Genesis, JobId, Lease, LeaseId, Limit, Millis, Name, Nonce, Price, Resources, Signature,
    SignedBatch, Term, TimeInForce, Units, VerifiedBatch, Wants,
};

/// The length of a step.
const STEP: Millis = Millis(10_000);
/// The time between an attacker's moves where nobody answers them.
const UNANSWERED_STEP: Millis = Millis(30_000);
/// The length of the lease.
const LENGTH: Millis = Millis(1_800_000);
/// Micro-credits for a second of the device.
const PRICE: Price = Price(1_000);
/// When a provider of souk says that it is ready, where nobody has begun.
const READY_AFTER: Millis = Millis(10_000);
/// How often it notes what was used.
const NOTE_PERIOD: Millis = Millis(240_000);
/// How much more than planned a buyer of souk bears: times, and beyond.
const PATIENCE: (u64, Millis) = (20, Millis(5_000));

const OPERATOR: AccountKey = AccountKey([1; 32]);
const PROVIDER: AccountKey = AccountKey([2; 32]);
const BUYER: AccountKey = AccountKey([3; 32]);

/// One attack, and the most it can cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What is done to whom.
    pub attack: &'static str,
    /// The seconds of device time that the work was planned to take.
    pub planned_s: u64,
    /// The most that the honest party loses, in seconds of the device at the lease's price.
    pub lost_s: f64,
    /// What the attacker has gained by it, in the same.
    pub gained_s: f64,
    /// Ways that were looked at: those that come to the same state once.
    pub ways: usize,
}

/// Who plays what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Game {
    /// The provider does no work and notes what it likes; the buyer is there.
    FalseNotes,
    /// The same, and the buyer is gone once it has begun.
    FalseNotesToNobody,
    /// The provider works; the buyer takes what it is given and pays as little as it can.
    UnpaidWork,
    /// The provider holds its device ready; the buyer begins nothing.
    Reserving,
}

impl Game {
    fn attack(self) -> &'static str {
        match self {
            Self::FalseNotes => "false notes, the buyer is there",
            Self::FalseNotesToNobody => "false notes, the buyer is gone",
            Self::UnpaidWork => "work is taken, as little paid as can be",
            Self::Reserving => "a device is held, nothing begun",
        }
    }

    fn attacker(self) -> AccountKey {
        match self {
            Self::FalseNotes | Self::FalseNotesToNobody => PROVIDER,
            Self::UnpaidWork | Self::Reserving => BUYER,
        }
    }
}

/// Plays all attacks.
pub fn play() -> Vec<Finding> {
    let mut findings = Vec::new();
    for planned in [3, 60, 600].map(|seconds| Millis(seconds * 1_000)) {
        findings.push(worst(Game::FalseNotes, planned));
    }
    findings.push(worst(Game::FalseNotesToNobody, Millis(600_000)));
    for planned in [60, 1_500].map(|seconds| Millis(seconds * 1_000)) {
        findings.push(worst(Game::UnpaidWork, planned));
    }
    findings.push(worst(Game::Reserving, Millis(600_000)));
    findings
}

/// How a lease stands, and what the honest party has done.
#[derive(Clone)]
struct Position {
    exchange: Exchange,
    lease: LeaseId,
    began: Millis,
    now: Millis,
    nonce: u64,
    /// When the last note was filed by an honest provider.
    noted: Millis,
    /// Device time that was really worked.
    worked: Millis,
    /// How long the device was the buyer's.
    held: Millis,
    /// Whether an honest provider goes on.
    working: bool,
}

fn worst(game: Game, planned: Millis) -> Finding {
    let mut known = HashMap::new();
    let (lost, gained) = search(game, planned, Position::new(), &mut known);
    let seconds = |micro: i64| micro as f64 / PRICE.0 as f64;
    Finding {
        attack: game.attack(),
        planned_s: planned.0 / 1_000,
        lost_s: seconds(lost),
        gained_s: seconds(gained),
        ways: known.len(),
    }
}

/// The most that the honest party can lose from here, and what the attacker has then gained.
fn search(
    game: Game,
    planned: Millis,
    mut position: Position,
    known: &mut HashMap<Vec<u8>, (i64, i64)>,
) -> (i64, i64) {
    position.act_honestly(game, planned);
    if position.lease().is_closed() {
        return position.outcome(game);
    }
    let key = position.key();
    if let Some(found) = known.get(&key) {
        return *found;
    }
    let mut most = (i64::MIN, 0);
    for command in position.moves(game, planned) {
        let mut next = position.clone();
        if let Some(command) = command
            && !next.command(game.attacker(), command)
        {
            continue;
        }
        next.pass(game, planned);
        most = most.max(search(game, planned, next, known));
    }
    known.insert(key, most);
    most
}

impl Position {
    /// A lease that has just been opened.
    fn new() -> Self {
        let mut genesis = Genesis::new(Name::default(), OPERATOR);
        let purse = Credits(100_000_000);
        let accounts = [OPERATOR, PROVIDER, BUYER].map(|key| (key, Name::default(), purse));
        genesis.accounts = accounts.into();
        let began = Millis(1_000_000);
        let mut position = Self {
            exchange: Exchange::new(genesis),
            lease: LeaseId(1),
            began,
            now: began,
            nonce: 0,
            noted: began,
            worked: Millis(0),
            held: Millis(0),
            working: true,
        };
        let ask = ask();
        let bid = bid(ask.resources.class());
        assert!(position.command(PROVIDER, Command::PlaceAsk(Box::new(ask))));
        assert!(position.command(BUYER, Command::PlaceBid(Box::new(bid))));
        position
    }

    fn lease(&self) -> &Lease {
        let lease = self.exchange.lease(self.lease);
        lease.expect("a market keeps its closed leases for longer")
    }

    /// Whether the market took it.
    fn command(&mut self, account: AccountKey, command: Command) -> bool {
        self.nonce += 1;
        let batch = Batch {
            market: self.exchange.market(),
            account,
            nonce: Nonce(self.nonce),
            expires: self.now.after(Millis(60_000)),
            commands: vec![command],
        };
        let signature = Signature([0; 64]);
        let signed = SignedBatch { batch, signature };
        let batch = VerifiedBatch::from_own_log(signed).expect("one command makes a batch");
        let done = self.exchange.apply(self.now, &batch);
        let mut outcomes = done.outcomes.into_iter();
        outcomes.all(|outcome| outcome.into_result().is_ok())
    }

    fn since_begin(&self) -> Millis {
        self.now.since(self.began)
    }

    /// What the honest party does now.
    fn act_honestly(&mut self, game: Game, planned: Millis) {
        let lease = self.lease;
        let first = self.since_begin() == Millis(0);
        match game {
            Game::FalseNotesToNobody if first => {
                self.command(BUYER, Command::StartWork { lease });
            }
            Game::FalseNotesToNobody => {}
            Game::FalseNotes if first => {
                self.command(BUYER, Command::StartWork { lease });
            }
            Game::FalseNotes => self.judge_note(planned),
            Game::UnpaidWork => self.note_work(),
            Game::Reserving if self.since_begin() >= READY_AFTER => {
                self.command(PROVIDER, Command::StateReady { lease });
            }
            Game::Reserving => {}
        }
    }

    /// A buyer that is there.
    fn judge_note(&mut self, planned: Millis) {
        let lease = self.lease;
        let (times, beyond) = PATIENCE;
        let patience = Millis(planned.0 * times + beyond.0);
        let note = self.lease().note;
        let is_false = note.is_some_and(|note| note.usage > bearable(planned));
        if self.since_begin() >= patience || is_false {
            self.command(BUYER, Command::Dispute { lease });
        } else if let Some(note) = note
            && note.accepted_at.since(self.now) <= STEP
        {
            let usage = note.usage;
            self.command(BUYER, Command::AcceptNote { lease, usage });
        }
    }

    /// A provider at work: it notes as it goes, and stops where it may not.
    fn note_work(&mut self) {
        let lease = self.lease;
        let usage = DeviceMicros(self.worked.0 * 1_000);
        let is_over = !self.lease().is_running();
        let is_due = self.now.since(self.noted) >= NOTE_PERIOD || is_over;
        if !is_due || self.lease().note.is_some() || usage <= self.lease().accepted {
            return;
        }
        self.noted = self.now;
        let possible = self.lease().accepted.0 + 300_000_000;
        let usage = DeviceMicros(usage.0.min(possible));
        if !self.command(PROVIDER, Command::NoteUsage { lease, usage }) {
            self.working = false;
        }
    }

    /// What the attacker may do; always also nothing.
    fn moves(&self, game: Game, planned: Millis) -> Vec<Option<Command>> {
        let lease = self.lease;
        let mut moves = vec![None];
        if game == Game::FalseNotesToNobody
            && !self.since_begin().0.is_multiple_of(UNANSWERED_STEP.0)
        {
            return moves;
        }
        match game {
            Game::FalseNotes | Game::FalseNotesToNobody => {
                let possible = self.lease().usage_possible(self.now);
                let most = DeviceMicros(possible.0.min(self.lease().accepted.0 + 300_000_000));
                moves.push(Some(Command::NoteUsage { lease, usage: most }));
                let borne = bearable(planned);
                if game == Game::FalseNotes && borne < most {
                    moves.push(Some(Command::NoteUsage {
                        lease,
                        usage: borne,
                    }));
                }
            }
            Game::UnpaidWork => {
                moves.push(Some(Command::StartWork { lease }));
                moves.push(Some(Command::Dispute { lease }));
                moves.push(Some(Command::EndLease { lease }));
                if let Some(note) = self.lease().note {
                    let usage = note.usage;
                    moves.push(Some(Command::AcceptNote { lease, usage }));
                }
            }
            Game::Reserving => {
                moves.push(Some(Command::Dispute { lease }));
                moves.push(Some(Command::EndLease { lease }));
            }
        }
        moves
    }

    fn pass(&mut self, game: Game, planned: Millis) {
        let runs = self.lease().is_running();
        if runs {
            self.held = Millis(self.held.0 + STEP.0);
        }
        let runs = runs && self.working;
        if game == Game::UnpaidWork && runs && self.worked < planned {
            self.worked = Millis(self.worked.0 + STEP.0).min(planned);
        }
        self.now = Millis(self.now.0 + STEP.0);
        self.exchange.tick(self.now);
    }

    /// What the honest party has lost, and the attacker gained.
    fn outcome(&self, game: Game) -> (i64, i64) {
        let balance = |key| {
            let account = self.exchange.account(key).expect("it was there first");
            i64::try_from(account.available.0).unwrap_or(i64::MAX) - 100_000_000
        };
        let worth = |time: Millis| i64::try_from(time.0 * PRICE.0 / 1_000).unwrap_or(i64::MAX);
        let (provider, buyer) = (balance(PROVIDER), balance(BUYER));
        match game {
            Game::FalseNotes | Game::FalseNotesToNobody => (-buyer, provider),
            Game::UnpaidWork => (worth(self.worked) - provider, buyer + worth(self.worked)),
            Game::Reserving => (worth(self.held) - provider, buyer),
        }
    }

    /// All that the rest of the game depends on.
    fn key(&self) -> Vec<u8> {
        let honest = (self.now, self.noted, self.worked, self.held, self.working);
        postcard::to_allocvec(&(self.lease(), honest)).expect("plain data always encodes")
    }
}

/// The most usage that a buyer of souk accepts of work that was planned so: an eighth more, and
/// five seconds.
fn bearable(planned: Millis) -> DeviceMicros {
    DeviceMicros((planned.0 + planned.0 / 8 + 5_000) * 1_000)
}

fn ask() -> Ask {
    Ask {
        device: DeviceId(1),
        capacity: Units(1),
        resources: Resources::default(),
        limit: Limit::Price(PRICE),
        quantity: Units(1),
        duration_min: Millis(1),
        duration_max: LENGTH,
        notice: Millis(0),
        spot: Vec::new(),
        idle: souk_market::Permille(100),
        accepts: Accepts::default(),
        tif: TimeInForce::Gtc,
    }
}

fn bid(class: souk_market::Class) -> Bid {
    Bid {
        class,
        wants: Wants::default(),
        limit: Limit::Price(PRICE),
        budget: Credits(100_000_000),
        quantity: Units(1),
        all_or_none: false,
        duration: LENGTH,
        start_delay_max: Millis(0),
        term: Term::Firm,
        tif: TimeInForce::Ioc,
        job: JobId([1; 32]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_honest_party_loses_no_more_than_is_promised() {
        for finding in play() {
            let bound = match finding.attack {
                it if it == Game::FalseNotes.attack() => finding.planned_s as f64 * 1.125 + 5.0,
                it if it == Game::FalseNotesToNobody.attack() => 1_500.0,
                it if it == Game::UnpaidWork.attack() => 310.0,
                _ => 70.0,
            };
            assert!(
                finding.lost_s <= bound,
                "{bound} s is the most: {finding:?}"
            );
            assert!(finding.ways > 5, "it was played: {finding:?}");
        }
    }
}
