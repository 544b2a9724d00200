//! Tests the core of a validator that is alone in its group; each test plays the disk.

use souk_consensus::replica::Proposal;
use souk_consensus::store::Recovery;
use souk_consensus::{
    CommandFault, Incarnation, Position, ReplicaConfig, ReplicaId, RestoreError, StateMachine,
};
use souk_market::Millis;

use super::*;

/// A command that the machine refuses before it counted two others, as all that begin with it.
const STRANGE: &[u8] = &[9];

/// Counts what it was told.
#[derive(Default)]
struct Counter(u64);

impl AnsweringMachine for Counter {
    type Question = ();
    type Reply = u64;

    fn answer_question(&self, (): ()) -> u64 {
        self.0
    }

    fn foresee_refusal(&self, command: &Vec<u8>) -> Option<Vec<u8>> {
        (command.starts_with(STRANGE) && self.0 < 2).then(|| vec![0])
    }
}

impl StateMachine for Counter {
    type Command = Vec<u8>;

    fn verify_command(command: &[u8]) -> Result<Vec<u8>, CommandFault> {
        Ok(command.to_vec())
    }

    fn apply_command(&mut self, _at: Position, _now: LogTime, _command: &Vec<u8>) -> Vec<u8> {
        self.0 += 1;
        vec![self.0 as u8]
    }

    fn tick(&mut self, _at: Position, _now: LogTime) -> Vec<u8> {
        Vec::new()
    }

    fn wakes_at(&self) -> Option<LogTime> {
        None
    }

    fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.snapshot()).as_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.0 = u64::from_le_bytes(bytes.try_into().unwrap());
        Ok(())
    }
}

const TICK: Micros = Micros::from_millis(10);

struct Alone {
    core: ValidatorCore<Counter>,
    now: Now,
}

impl Alone {
    /// A validator that leads a group of one.
    fn leads() -> Self {
        let id = ReplicaId::new(1).unwrap();
        let genesis = Replica::genesis_snapshot(&[id], &Counter::default());
        let mut recovered = Recovery {
            snapshot: genesis,
            entries: Vec::new(),
            hard_state: Default::default(),
            incarnation: Incarnation(1),
            cut: None,
        };
        recovered.hard_state.term = 1;
        recovered.hard_state.commit = 1;
        let config = ReplicaConfig::new(id, 7);
        let replica = Replica::new(config, recovered, Vec::new(), Counter::default()).unwrap();
        let now = Now {
            tick: Micros(0),
            log: Millis(1_000),
        };
        let core = ValidatorCore::new(replica, TICK, now);
        let mut alone = Self { core, now };
        while !alone.core.replica().is_leader() {
            alone.wake();
            alone.carry_out();
        }
        alone
    }

    fn wake(&mut self) {
        let at = self.core.wakes_at().unwrap();
        self.now.log.0 += at.since(self.now.tick).0 / 1_000;
        self.now.tick = at;
        self.core.apply(self.now, Event::TimerFired);
    }

    fn propose(&mut self, caller: u64, count: usize) {
        self.propose_each(caller, &vec![[7].as_slice(); count]);
    }

    fn propose_each(&mut self, caller: u64, commands: &[&[u8]]) {
        let proposal = |command: &&[u8]| Proposal {
            bytes: command.to_vec().into(),
            command: command.to_vec(),
        };
        let event = Event::Propose {
            caller: Caller(caller),
            commands: commands.iter().map(proposal).collect(),
        };
        self.core.apply(self.now, event);
    }

    fn ask(&mut self, caller: u64, consistency: Consistency) {
        let event = Event::Ask {
            caller: Caller(caller),
            consistency,
            question: (),
        };
        self.core.apply(self.now, event);
    }

    /// Does all that is to be done, and says what that was.
    fn carry_out(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        while let Some(action) = self.core.next(self.now) {
            match action {
                Action::Send(_) => {}
                Action::Persist(work) => {
                    let count = self.core.replica().machine().0;
                    done.push(format!("persist at {count}"));
                    self.core.apply(self.now, Event::Persisted(work));
                }
                Action::Respond { caller, response } => {
                    let said = match response {
                        Response::Proposed(answers) => format!("{} applied", answers.len()),
                        Response::Foreseen { results, .. } => format!("refused {results:?}"),
                        Response::Answered { reply, .. } => format!("it is {reply}"),
                        Response::Refused(_) => "busy".to_owned(),
                        Response::Members(changed) => format!("{changed:?}"),
                    };
                    done.push(format!("tell {}: {said}", caller.0));
                }
                Action::Tell(news) if !news.applied.is_empty() => done.push("news".to_owned()),
                Action::Tell(_) => {}
                _ => panic!("nothing else is to be done here"),
            }
        }
        done
    }
}

#[test]
fn commands_are_durable_before_they_are_applied_and_answered_before_they_are_told() {
    let mut alone = Alone::leads();
    alone.propose(1, 2);
    alone.propose(2, 1);
    alone.ask(3, Consistency::Stale);
    let done = alone.carry_out();
    assert_eq!(
        done[0], "tell 3: it is 0",
        "a stale answer waits for nothing"
    );
    assert_eq!(done[1], "persist at 0", "what came together shares a sync");
    assert_eq!(
        done[2..],
        ["tell 1: 2 applied", "tell 2: 1 applied", "news"]
    );
    alone.ask(4, Consistency::Linearizable);
    let done = alone.carry_out();
    assert!(done.contains(&"tell 4: it is 3".to_owned()), "{done:?}");
    assert!(!alone.core.is_in_round());
}

#[test]
fn commands_that_the_state_refuses_stay_out_of_the_log() {
    let mut alone = Alone::leads();
    let index = alone.core.replica().status().commit;
    alone.propose_each(1, &[STRANGE]);
    alone.propose_each(2, &[STRANGE, STRANGE]);
    let done = alone.carry_out();
    assert_eq!(
        done,
        ["tell 1: refused [[0]]", "tell 2: refused [[0], [0]]"]
    );
    assert_eq!(alone.core.replica().status().commit, index, "no entry");

    // One of a group that is not refused takes the others with it: their result is the log's.
    alone.propose_each(3, &[STRANGE, &[7]]);
    assert!(alone.carry_out().contains(&"tell 3: 2 applied".to_owned()));
    alone.propose_each(4, &[STRANGE]);
    assert!(alone.carry_out().contains(&"tell 4: 1 applied".to_owned()));
}

/// Without a leader they would wait as long as there is none, and anybody can send such commands.
#[test]
fn commands_that_wait_because_the_state_refuses_them_take_eight_mebibytes() {
    let mut alone = Alone::leads();
    let long = vec![STRANGE[0]; 3 << 20];
    for caller in 1..=3 {
        alone.propose_each(caller, &[&long]);
    }
    alone.propose_each(4, &[&vec![STRANGE[0]; 2 << 20]]);
    let done = alone.carry_out();
    assert_eq!(done.len(), 4, "{done:?}");
    assert!(done.contains(&"tell 3: busy".to_owned()), "{done:?}");
    for caller in [1, 2, 4] {
        assert!(
            done.contains(&format!("tell {caller}: refused [[0]]")),
            "{done:?}"
        );
    }
    // Their bytes are free again, however they ended.
    for caller in 5..8 {
        alone.propose_each(caller, &[&long, &long]);
        let done = alone.carry_out();
        assert_eq!(done, [format!("tell {caller}: refused [[0], [0]]")]);
    }
}

#[test]
fn a_validator_that_was_held_up_makes_up_for_a_few_ticks_only() {
    let mut alone = Alone::leads();
    let late = 100;
    alone.now.tick = alone.now.tick.plus(Micros(TICK.0 * late));
    alone.core.apply(alone.now, Event::TimerFired);
    alone.carry_out();
    let wakes_at = alone.core.wakes_at().unwrap();
    assert!(wakes_at > alone.now.tick, "the rest is not made up for");
    assert!(wakes_at <= alone.now.tick.plus(TICK));
}

#[test]
fn who_leads_hears_a_leader_all_the_time() {
    let mut alone = Alone::leads();
    for _ in 0..20 {
        alone.wake();
        alone.carry_out();
        // What it answers once it leads no more is this old, and not as old as its last election.
        assert!(alone.now.tick.since(alone.core.heard_at) <= TICK);
    }
    let before = alone.now.tick;
    alone.now.tick = before.plus(Micros(TICK.0 * 1_000));
    alone.core.apply(alone.now, Event::TimerFired);
    assert_eq!(alone.core.heard_at, before, "it slept meanwhile");
}

#[test]
#[should_panic(expected = "the disk answers before anything else happens")]
fn nothing_is_taken_in_while_something_is_on_its_way_to_the_disk() {
    let mut alone = Alone::leads();
    alone.propose(1, 1);
    while let Some(action) = alone.core.next(alone.now) {
        if let Action::Persist(_) = action {
            alone.propose(2, 1);
        }
    }
}
