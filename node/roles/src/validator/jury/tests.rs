//! Tests that a juror judges each open dispute once, repeats lost verdicts, and never guesses.

use std::collections::BTreeSet;

use souk_consensus::{LogIndex, LogTime, Position, StateMachine};
use souk_market::{
    Acceptance, Accusation, Ask, Batch, Bid, BuyerFilter, Command, ContentId, Credits, DeviceId,
    DeviceMicros, DisputeState, Dtype, Event, Features, Founder, Genesis, JobId, LeaseId, Limit,
    Millis, Name, Nonce, Permille, Price, Receipt, ReceiptBody, Refusal, Resources, SigningKey,
    Term, TimeInForce, Units, Wants,
};

use super::*;
use crate::market::roster::{Body, MembershipOrder, SignedMembershipOrder};
use crate::market::verdict::{SignedVerdict, VerdictBody};
use crate::validator::exchange::{BatchResult, ExchangeMachine, Watch};

const ME: AccountKey = AccountKey([1; 32]);

fn dispute(id: u64) -> Dispute {
    Dispute {
        id: DisputeId(id),
        lease: LeaseId(id),
        job: JobId([2; 32]),
        buyer: AccountKey([3; 32]),
        provider: AccountKey([4; 32]),
        graph: ContentId([5; 32]),
        inputs: vec![ContentId([6; 32])],
        weights: Vec::new(),
        outputs: vec![ContentId([7; 32])],
        bond: Credits(1),
        opened: Millis(1),
        verdicts: Vec::new(),
        state: DisputeState::Open { until: Millis(99) },
    }
}

fn seconds(count: u64) -> Micros {
    Micros::from_seconds(count)
}

#[test]
fn it_judges_the_oldest_first_and_one_at_a_time() {
    let mut juror = Juror::new(ME);
    let seen = || JuryEvent::Seen(vec![dispute(1), dispute(2)]);
    let first = juror.apply(seconds(1), seen());
    assert_eq!(first, [JuryEffect::Judge(Box::new(dispute(1)))]);
    assert_eq!(juror.apply(seconds(2), seen()), []);
    let id = DisputeId(1);
    let judged = juror.apply(seconds(3), JuryEvent::Judged(id, Some(Verdict::Guilty)));
    assert_eq!(judged, [JuryEffect::Submit(id, Verdict::Guilty)]);
    let next = juror.apply(seconds(4), seen());
    assert_eq!(next, [JuryEffect::Judge(Box::new(dispute(2)))]);
    // The log does not show it yet, so it is given again after the pause.
    let again = [JuryEffect::Submit(id, Verdict::Guilty)];
    assert_eq!(juror.apply(seconds(7), seen()), []);
    assert_eq!(juror.apply(seconds(8), seen()), again);
    assert_eq!(juror.apply(seconds(9), seen()), []);
}

#[test]
fn a_verdict_that_the_exchange_refuses_is_neither_given_nor_computed_again() {
    let mut juror = Juror::new(ME);
    let seen = || JuryEvent::Seen(vec![dispute(1)]);
    juror.apply(seconds(1), seen());
    let id = DisputeId(1);
    juror.apply(seconds(2), JuryEvent::Judged(id, Some(Verdict::Innocent)));
    assert_eq!(juror.apply(seconds(3), JuryEvent::Refused(id)), []);
    assert_eq!(juror.apply(seconds(60), seen()), []);
    juror.apply(seconds(61), JuryEvent::Seen(Vec::new()));
    assert!(juror.refused.is_empty());
}

#[test]
fn what_it_cannot_judge_it_tries_again_and_what_is_closed_it_forgets() {
    let mut juror = Juror::new(ME);
    let seen = || JuryEvent::Seen(vec![dispute(1)]);
    juror.apply(seconds(1), seen());
    assert_eq!(
        juror.apply(seconds(2), JuryEvent::Judged(DisputeId(1), None)),
        []
    );
    assert_eq!(juror.apply(seconds(3), seen()), []);
    let later = juror.apply(seconds(7), seen());
    assert_eq!(later, [JuryEffect::Judge(Box::new(dispute(1)))]);
    juror.apply(seconds(8), JuryEvent::Judged(DisputeId(1), None));
    let state = DisputeState::Undecided { at: Millis(99) };
    let closed = Dispute {
        state,
        ..dispute(1)
    };
    assert_eq!(juror.apply(seconds(20), JuryEvent::Seen(vec![closed])), []);
    assert!(juror.retries.is_empty());
}

#[test]
fn it_does_not_judge_what_it_has_judged_in_an_earlier_life() {
    let mut juror = Juror::new(ME);
    let verdicts = vec![(ME, Verdict::Innocent)];
    let judged = Dispute {
        verdicts,
        ..dispute(1)
    };
    assert_eq!(juror.apply(seconds(1), JuryEvent::Seen(vec![judged])), []);
}

/// Random orders of events: every open dispute that can be judged gets one finding, and no verdict
/// is submitted that was not found.
#[test]
fn by_seed_each_dispute_is_judged_and_no_verdict_is_invented() {
    for seed in 0..2_000_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut juror = Juror::new(ME);
        let mut disputes: Vec<Dispute> = (1..=4).map(dispute).collect();
        let (mut judging, mut found) = (None, BTreeMap::new());
        let mut now = 0;
        for _ in 0..200 {
            now += draw(4);
            let event = match judging.filter(|_| draw(2) == 0) {
                Some(id) => {
                    judging = None;
                    let verdict = match draw(3) {
                        0 => None,
                        1 => Some(Verdict::Guilty),
                        _ => Some(Verdict::Innocent),
                    };
                    if let Some(verdict) = verdict {
                        assert!(found.insert(id, verdict).is_none(), "judged twice");
                    }
                    JuryEvent::Judged(id, verdict)
                }
                None => JuryEvent::Seen(disputes.clone()),
            };
            for effect in juror.apply(seconds(now), event) {
                match effect {
                    JuryEffect::Judge(dispute) => {
                        assert_eq!(judging, None, "one at a time");
                        judging = Some(dispute.id);
                    }
                    JuryEffect::Submit(id, verdict) => {
                        assert_eq!(found.get(&id), Some(&verdict), "it was found so");
                        // Some verdicts are lost on the way.
                        let one = disputes.iter_mut().find(|it| it.id == id);
                        let one = one.filter(|it| draw(2) == 0 && !it.has_judged(ME));
                        if let Some(dispute) = one {
                            dispute.verdicts.push((ME, verdict));
                        }
                    }
                }
            }
        }
        let judged: BTreeSet<DisputeId> = found.keys().copied().collect();
        let in_log = disputes.iter().filter(|it| it.has_judged(ME)).count();
        assert_eq!((judged.len(), in_log), (4, 4), "seed {seed}");
    }
}

struct Nobody;

impl Watch for Nobody {
    fn on_events(&mut self, _at: Position, _time: Millis, _events: &[Event]) {}
}

const PROVIDER: u8 = 11;
const BUYER: u8 = 12;
const STAKE: Credits = Credits(5_000);

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

fn account(number: u8) -> AccountKey {
    AccountKey::from(&key(number))
}

/// A market of four validators, by the commands of its log.
struct Log {
    genesis: Genesis,
    machine: ExchangeMachine<Nobody>,
    nonce: u64,
}

impl Log {
    fn new() -> Log {
        let mut genesis = Genesis::new("m".try_into().unwrap(), account(9));
        let founder = |number: u8| Founder {
            raft_id: number.into(),
            account: account(number),
            address: "somewhere".into(),
        };
        genesis.validators = (1..=4).map(founder).collect();
        let full = |number| (account(number), Name::default(), Credits(100_000_000));
        genesis.accounts = [PROVIDER, BUYER].map(full).to_vec();
        let machine = ExchangeMachine::new(&genesis, Nobody);
        let mut log = Log {
            genesis,
            machine,
            nonce: 0,
        };
        (1..=4).for_each(|number| log.begin(number));
        log
    }

    /// Applies a command as the log has it: as bytes, which are verified first.
    fn apply(&mut self, bytes: &[u8]) -> BatchResult {
        let command = ExchangeMachine::<Nobody>::verify_command(bytes).unwrap();
        let index = LogIndex(2);
        let at = Position { index, offset: 0 };
        let result = self.machine.apply_command(at, LogTime(1_000), &command);
        postcard::from_bytes(&result).unwrap()
    }

    fn begin(&mut self, number: u8) {
        let order = MembershipOrder::Begin {
            raft_id: number.into(),
            address: "somewhere".into(),
            speaks: 1,
        };
        let body = Body {
            market: self.genesis.market_id(),
            signer: account(number),
            number: 1,
            expires: Millis(60_000),
            order,
        };
        let order = SignedMembershipOrder::sign(body, &key(number));
        let begun = self.apply(&order.encode());
        assert_eq!(begun, BatchResult::Ordered(Ok(number.into())));
    }

    fn run(&mut self, number: u8, command: Command) -> Acceptance {
        self.nonce += 1;
        let batch = Batch {
            market: self.genesis.market_id(),
            account: account(number),
            nonce: Nonce(self.nonce),
            expires: Millis(60_000),
            commands: vec![command],
        };
        match self.apply(&batch.sign(&key(number)).encode()) {
            BatchResult::Applied(mut results) => results.remove(0).unwrap(),
            other => panic!("not applied: {other:?}"),
        }
    }

    fn judge(&mut self, number: u8, dispute: DisputeId, verdict: Verdict) -> Result<(), Refusal> {
        let body = VerdictBody {
            market: self.genesis.market_id(),
            dispute,
            juror: account(number),
            verdict,
        };
        let signed = SignedVerdict::sign(body, &key(number));
        match self.apply(&signed.encode()) {
            BatchResult::Judged(counted) => counted,
            other => panic!("not judged: {other:?}"),
        }
    }

    /// Sells an exact lease, signs its receipt, and accuses.
    fn accuse(&mut self) -> DisputeId {
        self.run(PROVIDER, Command::Stake { amount: STAKE });
        let features = Features::EXACT_1;
        let resources = Resources {
            features,
            ..Resources::default()
        };
        let class = resources.class();
        let ask = Ask {
            device: DeviceId(1),
            capacity: Units(1),
            resources,
            limit: Limit::Price(Price(300)),
            quantity: Units(1),
            duration_min: Millis(1),
            duration_max: Millis(60_000),
            notice: Millis(0),
            spot: Vec::new(),
            idle: Permille(0),
            accepts: BuyerFilter::default(),
            tif: TimeInForce::Gtc,
        };
        self.run(PROVIDER, Command::PlaceAsk(Box::new(ask)));
        let wants = Wants {
            features,
            ..Wants::default()
        };
        let bid = Bid {
            class,
            wants,
            limit: Limit::Price(Price(300)),
            budget: Credits(1_000_000),
            quantity: Units(1),
            all_or_none: false,
            duration: Millis(10_000),
            start_delay_max: Millis(0),
            term: Term::Firm,
            tif: TimeInForce::Gtc,
            job: JobId([7; 32]),
        };
        self.run(BUYER, Command::PlaceBid(Box::new(bid)));
        let receipt = Receipt::new(self.receipt_body()).sign_as_provider(&key(PROVIDER));
        let weights = Vec::new();
        let accusation = Accusation { receipt, weights };
        match self.run(BUYER, Command::Accuse(Box::new(accusation))) {
            Acceptance::Accused { dispute, .. } => dispute,
            other => panic!("not accused: {other:?}"),
        }
    }

    fn receipt_body(&self) -> ReceiptBody {
        let lease = self.machine.exchange().lease(LeaseId(1)).unwrap();
        let usage = DeviceMicros(1_000_000);
        ReceiptBody {
            market: self.genesis.market_id(),
            lease: lease.id,
            job: lease.job,
            buyer: lease.buyer,
            provider: lease.provider,
            graph: ContentId([1; 32]),
            inputs: vec![ContentId([2; 32])],
            outputs: vec![ContentId([3; 32])],
            class: lease.class,
            model: lease.model.clone(),
            emulated: lease.class.emulated,
            dtype: Dtype::F32,
            declared_mega_ops: 0,
            delivered_mega_ops: 0,
            usage,
            metered: None,
            idle: DeviceMicros(0),
            idle_part: lease.idle,
            price: lease.price,
            amount: ReceiptBody::amount_due(lease.price, usage).unwrap(),
            bytes_in: 0,
            bytes_out: 0,
            started: Millis(5),
            finished: Millis(9),
        }
    }

    fn stake(&self) -> Credits {
        let provider = self.machine.exchange().account(account(PROVIDER));
        provider.unwrap().stake
    }
}

#[test]
fn verdicts_in_the_log_convict_by_three_of_four_and_survive_a_snapshot() {
    let mut log = Log::new();
    let dispute = log.accuse();
    for number in [1, 2] {
        assert_eq!(log.judge(number, dispute, Verdict::Guilty), Ok(()));
    }
    // Neither a stranger nor a second verdict of one validator makes the third.
    let stranger = log.judge(BUYER, dispute, Verdict::Guilty).unwrap_err();
    assert_eq!(stranger.code(), "juror_only");
    let twice = log.judge(2, dispute, Verdict::Guilty).unwrap_err();
    assert_eq!(twice.code(), "verdict_known");
    assert_eq!(log.stake(), STAKE);
    let mut restored = ExchangeMachine::new(&log.genesis, Nobody);
    restored.restore(&log.machine.snapshot()).unwrap();
    assert_eq!(restored.state_root(), log.machine.state_root());
    log.machine = restored;
    assert_eq!(log.judge(4, dispute, Verdict::Guilty), Ok(()));
    assert_eq!(log.stake(), Credits(0));
    let late = log.judge(3, dispute, Verdict::Innocent).unwrap_err();
    assert_eq!(late.code(), "dispute_unknown");
}

#[test]
fn a_verdict_of_another_market_or_another_hand_does_not_count() {
    let mut log = Log::new();
    let dispute = log.accuse();
    let body = VerdictBody {
        market: Genesis::new("n".try_into().unwrap(), account(9)).market_id(),
        dispute,
        juror: account(1),
        verdict: Verdict::Guilty,
    };
    let elsewhere = log.apply(&SignedVerdict::sign(body, &key(1)).encode());
    let refused = matches!(&elsewhere, BatchResult::Judged(Err(it)) if it.code() == "market_other");
    assert!(refused, "{elsewhere:?}");
    let forged = SignedVerdict::sign(body, &key(2)).encode();
    assert!(ExchangeMachine::<Nobody>::verify_command(&forged).is_err());
    let cut = &forged[..forged.len() - 1];
    assert!(ExchangeMachine::<Nobody>::verify_command(cut).is_err());
    let known = log.machine.exchange().dispute(dispute).unwrap();
    assert_eq!(known.verdicts, []);
}
