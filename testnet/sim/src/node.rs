//! Simulates one machine: a disk, a clock, and the core of a validator (the state machine that
//! decides for it) that runs on them. The world gives it events, and runs it in rounds, within
//! which it can die at each boundary.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use souk_consensus::check::{ForgedCommand, checks_of};
use souk_consensus::replica::{AppliedEntry, ProposalLimits, RoundWork, StartError};
use souk_consensus::store::StoreOpenError;
use souk_consensus::views::Views;
use souk_consensus::wal::WalConfig;
use souk_consensus::wire::Envelope;
use souk_consensus::{
    Check, LogIndex, LogTime, Persist, Replica, ReplicaConfig, ReplicaId, Snapshot, Store,
    StoreConfig, Verdict,
};
use souk_market::Millis;
use souk_roles::clock::{Micros, Now};
use souk_roles::validator::action::{Action, ReplicaFailure, Report, Response, RoundResults};
use souk_roles::validator::core::ValidatorCore;
use souk_roles::validator::event::{Caller, Event};
use souk_roles::validator::exchange::is_for_later_build;

use super::disk::SimDisk;
use super::fake_store::SimRows;
use super::faults::Boundary;
use super::forged_messages::ForgedState;
use super::machine::{Decoding, DecodingCache, EPOCH_MS, SimExchange, draw_rules_version};
use super::random::Random;
use super::tree_checks::TileFolder;

/// Share of clocks that run far too fast or too slowly, and their maximum drift; other clocks are
/// slightly off.
const BAD_CLOCKS_PERMILLE: u64 = 150;
const BAD_DRIFT_PPM: i64 = 50_000;
const DRIFT_PPM: i64 = 200;

/// Simulated milliseconds between two ticks of a replica.
const TICK_MS: u64 = 50;

/// The running validator of a machine, from its start to its stop or crash.
pub struct RunningValidator {
    pub core: ValidatorCore<SimExchange>,
    pub store: Store<SimDisk>,
    pub views: Views<SimRows>,
    /// The index of the snapshot that this life started from, or installed last: it reached every
    /// later checkpoint itself.
    pub viewed_from: LogIndex,
    /// The last seen count of the views' rebuilds.
    pub views_rebuilt: u64,
    /// The index of the last history comparison.
    pub looked_at: LogIndex,
    /// Pending verifications.
    pub checks: Vec<Check>,
    /// Whether a verification is scheduled.
    pub verifies_soon: bool,
    /// When the core wakes next.
    pub wakes_at: Option<u64>,
    /// When the replica last heard its leader, or last led, or when this life began.
    pub heard_leader_at: u64,
}

impl RunningValidator {
    /// Returns the replica, for checks.
    pub fn replica(&self) -> &Replica<SimExchange> {
        self.core.replica()
    }
}

/// Random properties of a machine.
#[derive(Clone, Copy)]
struct NodeParameters {
    drift_ppm: i64,
    segment_bytes: u64,
    snapshot_entries: u64,
    chunk_bytes: usize,
    limits: ProposalLimits,
}

impl NodeParameters {
    /// Draws a clock for the machine, and limits that all machines of a run share: unusual ones in
    /// a third of the runs.
    fn new(id: ReplicaId, seed: u64) -> Self {
        let mut clock = Random::new(seed, &format!("clock {id}"));
        let is_bad = clock.chance(BAD_CLOCKS_PERMILLE);
        let drift_ppm = clock.draw_signed(if is_bad { BAD_DRIFT_PPM } else { DRIFT_PPM });
        // Segments are small, so that the log fills and recycles them all the time.
        let mut drawn = Self {
            drift_ppm,
            segment_bytes: 48 << 10,
            snapshot_entries: 300,
            chunk_bytes: 8 << 10,
            limits: ProposalLimits::default(),
        };
        let mut random = Random::new(seed, "limits");
        if random.chance(333) {
            drawn.segment_bytes = random.draw_between(16, 256) << 10;
            drawn.snapshot_entries = random.draw_between(60, 900);
            drawn.chunk_bytes = random.draw_index(32 << 10) + (1 << 10);
            drawn.limits.commands_max = random.draw_index(200) + 8;
            drawn.limits.entry_commands_max = random.draw_index(16) + 1;
        }
        drawn
    }
}

/// A simulated machine of a validator.
pub struct Node {
    pub id: ReplicaId,
    pub disk: SimDisk,
    pub rows: SimRows,
    pub tiles: TileFolder,
    pub running: Option<RunningValidator>,
    /// Counts starts and stops; events scheduled for an earlier life are void.
    pub life: u64,
    pub clock_skew_ms: i64,
    /// Clock drift in parts per million; positive if fast.
    pub drift_ppm: i64,
    /// The most that the clock was ever ahead.
    ahead_max_ms: i64,
    /// The process does nothing until this time.
    pub busy_until: u64,
    pub sync_ms: u64,
    /// The point in a round at which the machine dies next.
    pub dies_at: Option<Boundary>,
    /// Whether only the process dies then, and the machine continues.
    pub is_killed: bool,
    /// Whether a fault harmed the disk, so that the replica can refuse to start.
    pub harmed: bool,
    /// The id that operators should remove, while the machine waits for admission with a new one.
    pub replaces: Option<ReplicaId>,
    /// Whether it accepts forgeries, and forges its messages as a leader.
    pub forges: bool,
    /// Whether it ever forged or lied.
    pub forged: bool,
    /// The invented state, while the machine offers one.
    pub lie: Option<ForgedState>,
    /// The latest version of the rules that the installed program carries out.
    pub rules_version_max: u16,
    drawn: NodeParameters,
    random: Random,
}

/// Why a machine's validator does not start.
pub enum StartFault {
    /// The store cannot be opened.
    Store(StoreOpenError),
    /// The disk failed during the start.
    Disk,
    /// The replica refuses.
    Replica(String),
    /// The disk has a state that needs a later program.
    Outdated,
}

/// The end of a round.
pub enum Round {
    /// The core had nothing to do.
    Idle,
    /// Messages to send, and events.
    Done(Box<CompletedRound>),
    /// The machine died in the round. The messages that had left are still on their way, and a
    /// snapshot that it kept may include the applied entries.
    Died(Vec<Envelope>, Vec<AppliedEntry>),
    /// The replica stops for a reason other than a crash.
    Refused(String),
    /// The replica stops because its state at this index differs from the group's.
    Diverged(LogIndex),
    /// The replica stops because the market's rules need a later program.
    Outdated,
}

/// The results of a round.
#[derive(Default)]
pub struct CompletedRound {
    pub sent: Vec<Envelope>,
    pub responses: Vec<(Caller, Response<SimExchange>)>,
    pub reports: Vec<Report>,
    pub news: RoundResults,
    /// Whether the replica took a snapshot.
    pub has_kept: bool,
}

/// The disk's progress in a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DiskStage {
    /// Nothing is durable, or nothing needs to be.
    Before,
    /// The writes are durable, and acknowledgements leave next.
    Durable,
    /// The acknowledgements have left.
    Acknowledged,
}

fn to_start_fault(error: StartError) -> StartFault {
    match error {
        StartError::Apply(error) if is_for_later_build(&error) => StartFault::Outdated,
        other => StartFault::Replica(other.to_string()),
    }
}

impl Node {
    /// Creates a machine with an empty disk.
    pub fn new(id: ReplicaId, seed: u64) -> Self {
        let drawn = NodeParameters::new(id, seed);
        Self {
            id,
            drawn,
            disk: SimDisk::new(Random::new(seed, &format!("disk {id}"))),
            rows: SimRows::default(),
            tiles: TileFolder::default(),
            running: None,
            life: 0,
            clock_skew_ms: 0,
            drift_ppm: drawn.drift_ppm,
            ahead_max_ms: 0,
            busy_until: 0,
            sync_ms: 0,
            dies_at: None,
            is_killed: false,
            harmed: false,
            replaces: None,
            forges: false,
            forged: false,
            lie: None,
            rules_version_max: draw_rules_version(id, seed),
            random: Random::new(seed, &format!("node {id}")),
        }
    }

    /// Returns whether the memory of its process went wrong.
    pub fn is_wrong(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.replica().machine().is_wrong())
    }

    /// Returns the wall clock.
    pub fn clock_time(&self, now: u64) -> LogTime {
        let skew_ms = self.clock_skew_ms + self.drifted_ms(now);
        LogTime((EPOCH_MS + now).saturating_add_signed(skew_ms))
    }

    /// Returns the moment by both clocks for the core.
    fn moment_at(&self, now: u64) -> Now {
        Now {
            tick: Micros::from_millis(now + TICK_MS),
            log: Millis(self.clock_time(now).0),
        }
    }

    /// Gives an event to the core, if it runs.
    pub fn apply_event(&mut self, now: u64, event: Event<SimExchange>) {
        let moment = self.moment_at(now);
        if let Some(running) = &mut self.running {
            running.core.apply(moment, event);
        }
        self.note_leader(now);
    }

    /// Updates the time of a leading replica, which always hears its leader.
    fn note_leader(&mut self, now: u64) {
        if let Some(running) = &mut self.running
            && running.replica().is_leader()
        {
            running.heard_leader_at = now;
        }
    }

    /// Returns when the core wants to wake.
    pub fn wakes_at(&self) -> Option<u64> {
        let at = self.running.as_ref()?.core.wakes_at()?;
        Some(at.0.div_ceil(1_000).saturating_sub(TICK_MS))
    }

    /// Returns how far the clock's drift puts it ahead, or behind if negative.
    fn drifted_ms(&self, now: u64) -> i64 {
        let now = i64::try_from(now).expect("a simulation is short");
        now * self.drift_ppm / 1_000_000
    }

    /// Makes the wall clock jump.
    pub fn jump_clock(&mut self, ms: i64) {
        self.clock_skew_ms += ms;
        self.ahead_max_ms = self.ahead_max_ms.max(self.clock_skew_ms);
    }

    /// Returns the latest time that the wall clock can have shown by now.
    pub fn latest_clock_time(&self, now: u64) -> LogTime {
        let ahead_ms = self.ahead_max_ms + self.drifted_ms(now).max(0);
        LogTime((EPOCH_MS + now).saturating_add_signed(ahead_ms))
    }

    /// Starts the replica from its disk. An empty disk starts a group of `members`, or waits for
    /// admission if there are none.
    pub fn start_replica(
        &mut self,
        now: u64,
        seed: u64,
        members: Option<&[ReplicaId]>,
        machine: SimExchange,
        decoded: &RefCell<DecodingCache>,
    ) -> Result<(), StartFault> {
        let config = StoreConfig {
            wal: WalConfig {
                segment_bytes: self.drawn.segment_bytes,
            },
        };
        let (mut store, recovered) =
            Store::open(self.disk.clone(), config).map_err(StartFault::Store)?;
        let recovered = match (recovered, members) {
            (Some(recovered), _) => recovered,
            (None, Some(members)) => {
                let genesis = Replica::genesis_snapshot(members, &machine);
                store.bootstrap(genesis).map_err(|_| StartFault::Disk)?
            }
            (None, None) => store.empty_recovery(),
        };
        let viewed_from = recovered.snapshot.index;
        let views = Views::open(self.rows.clone())
            .map_err(|error| StartFault::Replica(error.to_string()))?;
        let verdicts = checks_of(&recovered.entries);
        let verdicts = verdicts.iter().map(|check| check_verdict(check, decoded));
        let mut replica = Replica::new(
            self.replica_config(seed),
            recovered,
            verdicts.collect(),
            machine,
        )
        .map_err(to_start_fault)?;
        self.tiles.on_start(replica.history().size());
        if let Some(received) = store.take_stored_parts() {
            replica.resume_transfer(received);
        }
        // Each machine starts its ticks at a different time.
        let mut began = self.moment_at(now);
        began.tick.0 -= 1_000 * self.random.draw_below(TICK_MS);
        self.running = Some(RunningValidator {
            core: ValidatorCore::new(replica, Micros::from_millis(TICK_MS), began),
            store,
            views,
            viewed_from,
            views_rebuilt: 0,
            looked_at: LogIndex(0),
            checks: Vec::new(),
            verifies_soon: false,
            wakes_at: None,
            heard_leader_at: now,
        });
        self.life += 1;
        Ok(())
    }

    fn replica_config(&self, seed: u64) -> ReplicaConfig {
        ReplicaConfig {
            checkpoint_entries: super::CHECKPOINT_ENTRIES,
            snapshot_entries: self.drawn.snapshot_entries,
            snapshot_chunk_bytes: self.drawn.chunk_bytes,
            limits: self.drawn.limits,
            ..ReplicaConfig::new(self.id, seed.wrapping_add(self.life))
        }
    }

    /// Loses power.
    pub fn crash(&mut self) {
        self.end_life();
        self.disk.crash();
        self.rows.crash(&mut self.random);
    }

    /// Kills the process: its writes stay, synced or not. After a failed sync, the machine reboots,
    /// because reads cannot distinguish the disk's contents from those that only memory holds.
    pub fn kill(&mut self) {
        if self.disk.has_failed() {
            return self.crash();
        }
        self.end_life();
    }

    fn end_life(&mut self) {
        self.running = None;
        self.life += 1;
        self.dies_at = None;
        self.is_killed = false;
        self.disk.set_faults(|faults| faults.killed_at_sync = None);
    }

    fn is_dying_at(&self, boundary: Boundary) -> bool {
        self.dies_at == Some(boundary)
    }

    /// Runs one round of the core's work.
    pub fn run_round(&mut self, now: u64) -> Round {
        let moment = self.moment_at(now);
        let (mut done, mut stage) = (CompletedRound::default(), DiskStage::Before);
        let mut is_idle = true;
        loop {
            let Some(running) = &mut self.running else {
                return Round::Idle;
            };
            let Some(action) = running.core.next(moment) else {
                break;
            };
            is_idle = false;
            if let Some(ended) = self.carry_out(now, action, &mut stage, &mut done) {
                return ended;
            }
            let running = self.running.as_ref();
            if !running.is_some_and(|running| running.core.is_in_round()) {
                break;
            }
        }
        self.note_leader(now);
        match is_idle {
            true => Round::Idle,
            false => Round::Done(Box::new(done)),
        }
    }

    /// Does one step and returns the end of the round if the round ends here.
    fn carry_out(
        &mut self,
        now: u64,
        action: Action<SimExchange>,
        stage: &mut DiskStage,
        done: &mut CompletedRound,
    ) -> Option<Round> {
        match action {
            Action::Send(mut envelopes) => {
                done.sent.append(&mut envelopes);
                if *stage == DiskStage::Durable {
                    *stage = DiskStage::Acknowledged;
                    return self.dies_after(Boundary::SentAfter, done);
                }
                None
            }
            Action::Check(mut checks) => {
                let running = self.running.as_mut()?;
                running.checks.append(&mut checks);
                None
            }
            Action::Persist(work) => {
                *stage = DiskStage::Durable;
                self.make_durable(now, work, done)
            }
            Action::Respond { caller, response } => {
                done.responses.push((caller, response));
                None
            }
            Action::Tell(news) => self.on_news(*news, done),
            Action::Keep(snapshot) => {
                if !self.write_snapshot(now, snapshot) {
                    let CompletedRound { sent, news, .. } = std::mem::take(done);
                    return Some(Round::Died(sent, news.applied));
                }
                done.has_kept = true;
                None
            }
            Action::SyncViews => {
                self.rows.sync();
                None
            }
            Action::Report(report) => {
                done.reports.push(*report);
                None
            }
            Action::Stop(failure) => Some(match *failure {
                ReplicaFailure::Apply(error) if is_for_later_build(&error) => Round::Outdated,
                ReplicaFailure::Apply(error) => Round::Refused(error.to_string()),
                ReplicaFailure::Diverged(divergence) => Round::Diverged(divergence.index),
            }),
        }
    }

    /// Returns the end of the round if the machine dies at this boundary.
    fn dies_after(&self, boundary: Boundary, done: &mut CompletedRound) -> Option<Round> {
        let dies = self.dies_at == Some(boundary);
        dies.then(|| Round::Died(std::mem::take(&mut done.sent), Vec::new()))
    }

    fn make_durable(
        &mut self,
        now: u64,
        work: Box<RoundWork>,
        done: &mut CompletedRound,
    ) -> Option<Round> {
        if let Some(died) = self.dies_after(Boundary::SentFirst, done) {
            return Some(died);
        }
        if self.is_dying_at(Boundary::Unsynced) {
            // A leader's snapshot becomes durable with three syncs: its bytes, its name, the log.
            let after = match work.persist.snapshot {
                Some(_) => u32::try_from(self.random.draw_below(3)).expect("a small number"),
                None => 0,
            };
            self.dies_at_sync(after);
        }
        if !self.store_parts(&work) || !self.persist_round(&work.persist, now) {
            return Some(Round::Died(std::mem::take(&mut done.sent), Vec::new()));
        }
        if let Some(died) = self.dies_after(Boundary::Persisted, done) {
            return Some(died);
        }
        self.apply_event(now, Event::Persisted(work));
        None
    }

    fn on_news(&mut self, news: RoundResults, done: &mut CompletedRound) -> Option<Round> {
        if self.is_dying_at(Boundary::Applied) {
            return Some(Round::Died(std::mem::take(&mut done.sent), news.applied));
        }
        let running = self.running.as_mut()?;
        running.viewed_from = news.installed.unwrap_or(running.viewed_from);
        let replica = running.core.replica();
        self.tiles.on_news(&news, replica.history().size());
        if let Err(error) = running.views.on_checkpoints(&news.checkpoints) {
            return Some(Round::Refused(error.to_string()));
        }
        done.news = news;
        None
    }

    /// Keeps the received parts of a snapshot. Returns false if the disk failed.
    fn store_parts(&mut self, work: &RoundWork) -> bool {
        let store = self.running.as_mut().map(|running| &mut running.store);
        store.is_some_and(|store| store.store_parts(&work.parts).is_ok())
    }

    /// Persists the round. Returns false if the disk failed.
    fn persist_round(&mut self, persist: &Persist, now: u64) -> bool {
        if persist.must_sync && self.sync_ms > 0 {
            self.busy_until = self.busy_until.max(now + self.sync_ms);
        }
        let Some(running) = &mut self.running else {
            return false;
        };
        running.store.persist(persist).is_ok()
    }

    /// Makes the machine die after this many more syncs.
    fn dies_at_sync(&mut self, after: u32) {
        let killed = self.is_killed;
        self.disk.set_faults(|faults| match killed {
            true => faults.killed_at_sync = Some(after),
            false => faults.sync_fails = Some(after),
        });
    }

    /// Writes a snapshot. Returns false if the machine died during the write.
    fn write_snapshot(&mut self, now: u64, snapshot: Box<Snapshot>) -> bool {
        if self.is_dying_at(Boundary::Snapshot) {
            let after = u32::try_from(self.random.draw_below(4)).expect("a small number");
            self.dies_at_sync(after);
        }
        let Some(running) = &mut self.running else {
            return false;
        };
        if running.store.save_snapshot(&snapshot).is_err() {
            return false;
        }
        let Ok(keep_from) = running.store.remove_old_data() else {
            return false;
        };
        let kept = Event::Kept {
            snapshot,
            keep_from,
        };
        self.apply_event(now, kept);
        true
    }

    /// Returns the machine's own random stream.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

/// Returns the verdict of a check. The cache decodes each batch only once.
pub fn check_verdict(check: &Check, decoded: &RefCell<DecodingCache>) -> Verdict<Rc<Decoding>> {
    let commands = check.commands.iter().enumerate();
    let verified = commands.map(|(offset, command)| {
        let decoding = decoded.borrow_mut().get(command);
        decoding.into_verified().map_err(|cause| ForgedCommand {
            offset,
            cause: Arc::new(cause),
        })
    });
    Verdict {
        ticket: check.ticket,
        outcome: verified.collect(),
    }
}
