//! One log across the switch to version 2 of the rules, carried out by the program of before, by
//! that of after, and by one that takes the other's place.

use super::*;

/// What a validator states after a command: the result, and the digests of events and state.
#[derive(Debug, PartialEq, Eq)]
struct Stated {
    result: Vec<u8>,
    events: Digest,
    root: Digest,
}

fn apply<W: Watch>(machine: &mut ExchangeMachine<W>, now: LogTime, command: &LogCommand) -> Stated {
    Stated {
        result: machine.apply_command(POSITION, now, command),
        events: machine.events_digest(),
        root: machine.state_root(),
    }
}

/// Numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// A court whose people do what the dice say.
struct Play {
    court: Court,
    dice: Dice,
    /// The raft id of each validator that has begun and not left.
    seats: [Option<u64>; 4],
    /// Disputes that were decided when a validator began.
    decided_by_return: u32,
}

impl Play {
    fn new(seed: u64) -> Play {
        Play {
            court: Court::found(),
            dice: Dice::new(seed),
            seats: [1, 2, 3, 4].map(Some),
            decided_by_return: 0,
        }
    }

    fn version(&self) -> u16 {
        let now = Millis(self.court.now.0);
        self.court.machine.exchange().version_at(now)
    }

    fn step(&mut self) {
        self.court.now.0 += self.dice.draw(2_000);
        match self.dice.draw(10) {
            0 => self.accuse(),
            1 => self.trade_inexact(),
            2..6 => self.judge(),
            6 | 7 => self.leave(),
            _ => self.come_back(),
        }
        self.court.machine.exchange().audit();
    }

    fn list_open_disputes(&self) -> Vec<DisputeId> {
        let open = self.court.machine.exchange().disputes();
        open.filter(|it| it.is_open()).map(|it| it.id).collect()
    }

    fn accuse(&mut self) {
        if self.list_open_disputes().len() < 4 {
            self.court.open_dispute();
        }
    }

    fn trade_inexact(&mut self) {
        self.court.trade(Features::default());
        let receipt = Receipt::new(self.court.receipt_body()).sign_as_provider(&key(PROVIDER));
        let receipt = receipt.sign_as_buyer(&key(BUYER));
        self.court
            .command(BUYER, Command::Settle(Box::new(receipt)));
    }

    fn judge(&mut self) {
        let open = self.list_open_disputes();
        if open.is_empty() {
            return;
        }
        let dispute = open[self.dice.draw(open.len() as u64) as usize];
        let juror = VALIDATORS + self.dice.draw(4) as u8;
        let verdict = match self.dice.draw(4) {
            0 => Verdict::Innocent,
            _ => Verdict::Guilty,
        };
        let body = VerdictBody {
            market: self.court.market,
            dispute,
            juror: account(juror),
            verdict,
        };
        let signed = SignedVerdict::sign(body, &key(juror));
        self.court.apply(LogCommand::Verdict(signed));
    }

    fn leave(&mut self) {
        let validator = self.dice.draw(4) as usize;
        if self.seats.iter().flatten().count() > 1
            && let Some(raft_id) = self.seats[validator].take()
        {
            let order = MembershipOrder::Remove { raft_id };
            self.court.order(OPERATOR, order);
        }
    }

    fn come_back(&mut self) {
        let Some(validator) = self.seats.iter().position(Option::is_none) else {
            return;
        };
        let number = validator as u8;
        let raft_id = self.court.admit(number);
        let before = self.court.machine.watch().0;
        self.court.begin(number, raft_id);
        let decided = self.court.machine.watch().0 - before;
        assert!(decided == 0 || self.version() == 2, "version 1 counts none");
        self.decided_by_return += decided;
        self.seats[validator] = Some(raft_id);
    }

    /// Announces version 2, and returns the log time from which it applies.
    fn announce(&mut self) -> LogTime {
        let at = self.court.now.0 + 1 + self.dice.draw(20_000);
        self.court.announce(Millis(at));
        LogTime(at)
    }
}

impl Court {
    fn announce(&mut self, at: Millis) {
        let to = RULES_VERSION;
        self.command(OPERATOR, Command::Upgrade(Upgrade { to, at }));
    }

    fn admit(&mut self, validator: u8) -> u64 {
        let admit = MembershipOrder::Admit {
            account: account(VALIDATORS + validator),
            address: String::new(),
        };
        self.order(OPERATOR, admit)
    }

    /// A market of this version of the rules in which a dispute is open.
    fn at_version(version: u16) -> Court {
        let mut court = Court::new();
        if version > 1 {
            court.announce(Millis(court.now.0 + 1));
            court.now.0 += 1;
        }
        court
    }
}

#[test]
fn old_and_new_replicas_agree_until_the_switch_and_a_new_one_takes_an_old_ones_place() {
    let mut decided_by_return = 0;
    for seed in 1..60 {
        let mut play = Play::new(seed);
        (0..40).for_each(|_| play.step());
        let switch = play.announce();
        while play.version() == 1 {
            play.step();
        }
        (0..60).for_each(|_| play.step());
        decided_by_return += play.decided_by_return;
        assert_one_market(play.court, switch, seed);
    }
    assert!(decided_by_return > 0, "what version 2 changes was played");
}

fn assert_one_market(court: Court, switch: LogTime, seed: u64) {
    let genesis = &court.genesis;
    let mut old = Machine::new(genesis, Nobody).with_rules_version_max(1);
    let mut new = Machine::new(genesis, Nobody);
    let first = court.log.partition_point(|(now, _)| *now < switch);
    for (now, command) in &court.log[..first] {
        assert!(old.unsupported_reason(*now).is_none(), "seed {seed}");
        let stated = apply(&mut old, *now, command);
        assert_eq!(stated, apply(&mut new, *now, command), "seed {seed}");
    }
    let reason = old.unsupported_reason(switch).unwrap().to_string();
    assert!(reason.contains("versions up to 1"), "{reason}");
    assert!(reason.contains("supports version 2"), "{reason}");
    assert!(new.unsupported_reason(switch).is_none());
    assert_eq!(old.snapshot(), new.snapshot(), "seed {seed}: one state");
    // The program is replaced, and reads what the old one had written.
    let mut next = Machine::new(genesis, Nobody);
    next.restore(&old.snapshot()).unwrap();
    for (now, command) in &court.log[first..] {
        let stated = apply(&mut next, *now, command);
        assert_eq!(stated, apply(&mut new, *now, command), "seed {seed}");
    }
    assert_eq!(next.snapshot(), new.snapshot(), "seed {seed}");
    assert_eq!(next.snapshot(), court.machine.snapshot(), "seed {seed}");
    assert!(old.restore(&next.snapshot()).is_err(), "seed {seed}");
}

#[test]
fn a_validator_that_comes_back_brings_its_verdict_along_from_version_2_on() {
    for version in [1, 2] {
        let mut court = Court::at_version(version);
        court.judge(3);
        court.remove(3);
        // Three remain, and all of them must agree; one of them is down.
        court.judge(0);
        court.judge(1);
        assert!(!court.is_convicted());
        let raft_id = court.admit(3);
        assert!(!court.is_convicted(), "it has not begun");
        court.begin(3, raft_id);
        // Three of four have agreed, and three are needed.
        assert_eq!(court.is_convicted(), version == 2);
        court.machine.exchange().audit();
    }
}

#[test]
fn a_market_founded_again_ends_its_disputes_from_version_2_on() {
    for version in [1, 2] {
        let mut court = Court::at_version(version);
        court.judge(0);
        court.machine.reset_roster(&court.genesis);
        let dispute = court.machine.exchange().dispute(court.dispute()).unwrap();
        assert_eq!(dispute.is_open(), version == 1);
        court.machine.exchange().audit();
        let bytes = court.machine.snapshot();
        court.machine.restore(&bytes).unwrap();
        assert_eq!(court.machine.snapshot(), bytes);
        // One of those that found it again remains, who had judged before.
        court.begin(0, 1);
        court.begin(1, 2);
        court.remove(1);
        assert_eq!(court.is_convicted(), version == 1);
    }
}

#[test]
fn the_first_founder_that_begins_is_not_the_whole_jury_from_version_2_on() {
    for version in [1, 2] {
        let mut court = Court::found_and_begin(1);
        if version > 1 {
            court.announce(Millis(court.now.0 + 1));
            court.now.0 += 1;
        }
        court.open_dispute();
        court.judge(0);
        assert_eq!(court.is_convicted(), version == 1);
        if version > 1 {
            court.begin(1, 2);
            court.judge(1);
            assert!(!court.is_convicted(), "two of four");
            court.begin(2, 3);
            court.judge(2);
            assert!(court.is_convicted(), "three of four");
        }
        court.machine.exchange().audit();
    }
}
