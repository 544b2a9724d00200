//! Makes the larger checks of a simulation: compares whole logs with each other, and checks after
//! all faults are repaired that everything was answered, every lease is closed, and each disk
//! replays to the common state.

use souk_consensus::audit::audit;
use souk_consensus::log::Log;
use souk_consensus::{Digest, LogIndex};
use souk_market::Lease;

use crate::checker::Violation;
use crate::machine::SimExchange;
use crate::state_comparison;
use crate::world::World;

/// Entries to compare below the highest common one: more than a second's, because the check repeats
/// every second.
const COMPARED_MAX: u64 = 64;

/// Log matching: if two logs agree on an entry's term, they agree on it and on all earlier entries.
pub fn compare_logs(world: &mut World) {
    let honest = world.nodes.iter().filter(|node| !node.forges);
    let running = honest.filter_map(|node| node.running.as_ref());
    // Unverified entries may still be removed.
    let logs = running.map(|running| (running.replica().log(), running.replica().verified_index()));
    let logs: Vec<(&Log, LogIndex)> = logs.collect();
    let mut found = None;
    for (place, (one, to)) in logs.iter().enumerate() {
        for (other, other_to) in &logs[place + 1..] {
            found = found.or_else(|| first_difference(one, other, *to.min(other_to)));
        }
    }
    if let Some((index, term)) = found {
        world
            .checker
            .record_violation(Violation::LogsDiffer { index, term });
    }
}

fn first_difference(one: &Log, other: &Log, last: LogIndex) -> Option<(u64, u64)> {
    let first = one.first_entry_index().max(other.first_entry_index());
    assert!(last <= one.last_entry_index().min(other.last_entry_index()));
    let mut agreed = 0;
    for index in (first.0..=last.0).rev().map(LogIndex) {
        let (a, b) = (one.get(index)?, other.get(index)?);
        if a.term == b.term {
            agreed += 1;
        }
        if agreed > 0 && (a.term != b.term || a.data != b.data) {
            return Some((index.0, a.term));
        }
        if agreed > COMPARED_MAX {
            break;
        }
    }
    None
}

/// Checks after the healing: progress, no lost result, one state everywhere, and disks that replay
/// to it.
pub fn check_ending(world: &mut World) {
    if !world.is_at_rest() {
        let waiting = world.operations.waiting_count() as u64;
        let reason = describe_world(world);
        return world
            .checker
            .record_violation(Violation::NoProgress { waiting, reason });
    }
    world.checker.check_acknowledged();
    check_escrow(world);
    find_proposals(world);
    compare_states(world);
    check_tiles(world);
    for node in 0..world.nodes.len() {
        if !world.nodes[node].harmed {
            audit_disk(world, node);
        }
    }
}

/// Checks that every lease is closed without escrow.
fn check_escrow(world: &mut World) {
    let held = |lease: &&Lease| !lease.is_closed() || lease.escrow.0 > 0;
    let (_, shadow) = world.checker.shadow_state();
    let lease = shadow
        .exchange()
        .leases()
        .find(held)
        .map(|lease| lease.id.0);
    if let Some(lease) = lease {
        world
            .checker
            .record_violation(Violation::LeaseOpen { lease });
    }
}

/// Checks that every proposal was applied, or ended with the life that received it.
fn find_proposals(world: &mut World) {
    let running = world.nodes.iter().filter_map(|node| node.running.as_ref());
    let statuses = running.map(|running| running.replica().status());
    let left = statuses.filter(|status| status.proposals > 0);
    let left = left.map(|status| (status.id.get(), status.proposals as u64));
    if let Some((replica, commands)) = left.min() {
        world
            .checker
            .record_violation(Violation::ProposalLeft { replica, commands });
    }
}

/// Checks that each machine has the tiles of the history that its replica filled.
fn check_tiles(world: &mut World) {
    for node in &world.nodes {
        if let Some(running) = &node.running {
            let size = running.replica().history().size();
            world.checker.check_tiles(node.id, &node.tiles, size);
        }
    }
}

fn compare_states(world: &mut World) {
    let (_, shadow) = world.checker.shadow_state();
    let mut differs = None;
    for node in &world.nodes {
        let Some(running) = &node.running else {
            continue;
        };
        if !state_comparison::is_same_state(
            running.replica().machine().exchange(),
            shadow.exchange(),
        ) {
            differs = Some((running.replica().applied_index().0, node.id.get()));
        }
    }
    if let Some((index, replica)) = differs {
        world
            .checker
            .record_violation(Violation::StatesDiffer { index, replica });
    }
}

/// Cuts the power for the last time, and checks that the disk alone replays to the same state.
fn audit_disk(world: &mut World, node: usize) {
    world.nodes[node].crash();
    let mut disk = world.nodes[node].disk.clone();
    let genesis = world.genesis().clone();
    let machine = || SimExchange::new(&genesis);
    match audit(&mut disk, crate::CHECKPOINT_ENTRIES, machine) {
        Ok(audit) => world.counts.audited += audit.commands,
        Err(error) => {
            let replica = world.nodes[node].id.get();
            let reason = error.to_string();
            world
                .checker
                .record_violation(Violation::AuditFails { replica, reason });
        }
    }
}

fn describe_world(world: &World) -> String {
    let mut text = format!("{} waits first;", world.operations.describe_first());
    for node in &world.nodes {
        let state = match &node.running {
            None => "off".to_owned(),
            Some(running) => {
                let status = running.replica().status();
                format!(
                    "{:?} term {} commit {} applied {} last {} voters {:?} learners {:?}",
                    status.role,
                    status.term,
                    status.commit,
                    status.applied,
                    status.last,
                    status.members.get_voters(),
                    status.members.get_learners(),
                )
            }
        };
        text.push_str(&format!(" {}: {state};", node.id));
    }
    text
}

/// Returns a hash of the whole run, which is equal for equal seeds.
pub fn fingerprint(world: &World) -> Digest {
    world.checker.history_root()
}
