//! Begins and ends the faults of a run when the world reaches their scheduled times, and replaces
//! machines with a lost disk as an operator would.

use souk_consensus::ReplicaId;
use souk_roles::validator::event::Event as CoreEvent;

use super::disk::{DiskFaults, SimDisk};
use super::faults::{Boundary, Fault};
use super::network::MessageFaultRates;
use super::world::actors::Role;
use super::world::{Event, World};

impl World {
    /// Begins a fault of the schedule.
    pub(super) fn begin_fault(&mut self, number: usize) {
        if self.healed {
            return;
        }
        let fault = self.faults[number].fault.clone();
        *self.counts.faults.entry(name(&fault)).or_default() += 1;
        if let Some(ms) = fault_duration(&fault) {
            self.schedule_event(self.now + ms, Event::EndFault { number });
        }
        match fault {
            Fault::Crash {
                node,
                boundary,
                down_ms,
            } => self.crash_node(node, boundary, down_ms),
            Fault::Kill {
                node,
                boundary,
                down_ms,
            } => {
                // A machine that is due to lose power loses it now.
                let machine = &mut self.nodes[node];
                machine.is_killed = machine.running.is_some() && machine.dies_at.is_none();
                self.crash_node(node, boundary, down_ms);
            }
            Fault::Blackout { down_ms } => {
                for node in 0..self.nodes.len() {
                    self.crash_node(node, Boundary::Begin, down_ms);
                }
            }
            Fault::Pause { node, ms } => self.pause_node(node, ms),
            Fault::ClockJump { node, ms } => self.nodes[node].jump_clock(ms),
            Fault::SyncFails { node, after } => {
                let disk = &self.nodes[node].disk;
                disk.set_faults(|faults| faults.sync_fails = Some(after));
            }
            Fault::ShortRead { node } => {
                self.nodes[node]
                    .disk
                    .set_faults(|faults| faults.short_read = true);
            }
            Fault::FlipBit { node, down_ms } => self.flip_bit(node, down_ms),
            Fault::Misdirect { node, down_ms } => self.misdirect_write(node, down_ms),
            Fault::Replace { node } if self.may_lose_a_disk() => self.lose_disk(node),
            Fault::Replace { .. } => {}
            Fault::ReplaceApart { node, mask, .. } => {
                self.network.set_partition(mask, true);
                if self.may_lose_a_disk() {
                    self.lose_disk(node);
                }
            }
            Fault::Views {
                node,
                harm,
                down_ms,
            } => self.harm_views(node, harm, down_ms),
            Fault::Transfer { to } => self.transfer_leadership(to),
            // Only one validator lies at a time, so that a majority is honest.
            Fault::Forge { .. } | Fault::Lie { .. } if self.has_liar() => {}
            Fault::Lie { node, .. } => self.send_forged_state(node),
            Fault::WrongState { node } => self.go_wrong(node),
            Fault::Forge { node, .. } => {
                self.nodes[node].forges = true;
                self.nodes[node].forged = true;
            }
            other => self.set_lasting(&other, true),
        }
    }

    /// Ends a fault of the schedule.
    pub(super) fn end_fault(&mut self, number: usize) {
        if !self.healed {
            let fault = self.faults[number].fault.clone();
            match fault {
                Fault::Forge { node, .. } => self.replace_liar(node),
                Fault::Lie { node, .. } => self.nodes[node].lie = None,
                other => self.set_lasting(&other, false),
            }
        }
    }

    fn set_lasting(&mut self, fault: &Fault, on: bool) {
        match *fault {
            Fault::Partition { mask, .. } | Fault::ReplaceApart { mask, .. } => {
                self.network.set_partition(mask, on);
            }
            Fault::OneWay { from, to, .. } => self.network.set_cut(from, to, on),
            Fault::Cut { one, other, .. } => {
                self.network.set_cut(one, other, on);
                self.network.set_cut(other, one, on);
            }
            Fault::SlowLink { node, delay_ms, .. } => {
                self.network.set_slow(node, if on { delay_ms } else { 0 });
            }
            Fault::Storm {
                lost,
                doubled,
                damaged,
                spread_ms,
                ..
            } => {
                let storm = MessageFaultRates {
                    lost,
                    doubled,
                    damaged,
                    spread_ms,
                };
                if on {
                    self.network.begin_storm(storm)
                } else {
                    self.network.end_storm(storm)
                }
            }
            Fault::Full { node, .. } => {
                self.nodes[node].disk.set_faults(|faults| faults.full = on);
            }
            Fault::AllFull { .. } => {
                for disk in self.all_disks() {
                    disk.set_faults(|faults| faults.full = on);
                }
            }
            Fault::SlowDisk { node, sync_ms, .. } => {
                self.nodes[node].sync_ms = if on { sync_ms } else { 0 };
            }
            Fault::Reorder { .. } => {
                self.reorders = if on {
                    self.reorders + 1
                } else {
                    self.reorders.saturating_sub(1)
                }
            }
            _ => {}
        }
    }

    fn crash_node(&mut self, node: usize, boundary: Boundary, down_ms: u64) {
        if self.nodes[node].running.is_none() {
            return;
        }
        match boundary {
            Boundary::Begin => self.end_process(node, down_ms),
            later => self.nodes[node].dies_at = Some(later),
        }
    }

    /// Replaces the program of a liar with an honest one.
    pub(super) fn replace_liar(&mut self, node: usize) {
        let lied = std::mem::take(&mut self.nodes[node].forges);
        if lied && self.nodes[node].running.is_some() {
            self.power_off(node, 100);
        }
    }

    fn has_liar(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| node.forges || node.lie.is_some())
    }

    /// Corrupts a machine's memory. Only one fails at a time, as with lost disks: more would be
    /// beyond the promises of replication.
    fn go_wrong(&mut self, node: usize) {
        if self.may_lose_a_disk()
            && let Some(running) = &self.nodes[node].running
        {
            running.replica().machine().go_wrong();
        }
    }

    /// Restarts a process whose memory went wrong.
    pub(super) fn mend_memory(&mut self, node: usize) {
        if self.nodes[node].is_wrong() {
            self.power_off(node, 100);
        }
    }

    fn pause_node(&mut self, node: usize, ms: u64) {
        let until = self.now + ms;
        self.nodes[node].busy_until = self.nodes[node].busy_until.max(until);
    }

    /// Returns whether a disk can be lost. Only one can be harmed for good at a time: more would be
    /// beyond the promises of replication.
    fn may_lose_a_disk(&self) -> bool {
        self.nodes
            .iter()
            .all(|node| !node.harmed && node.replaces.is_none() && !node.is_wrong())
    }

    fn flip_bit(&mut self, node: usize, down_ms: u64) {
        if self.nodes[node].running.is_none() || !self.may_lose_a_disk() {
            return;
        }
        self.power_off(node, down_ms);
        let prefix = if self.random.chance(700) {
            "wal-"
        } else {
            "snapshot-"
        };
        self.nodes[node].harmed = self.nodes[node].disk.flip_bit(prefix);
    }

    /// Misdirects a write. The disk counts as harmed from then on: once the lost data was
    /// acknowledged, the next start refuses the disk.
    fn misdirect_write(&mut self, node: usize, down_ms: u64) {
        if self.nodes[node].running.is_none() || !self.may_lose_a_disk() {
            return;
        }
        self.nodes[node].harmed = true;
        self.nodes[node]
            .disk
            .set_faults(|faults| faults.misdirects = Some(down_ms));
    }

    /// Loses power if other writes have followed a misdirected one.
    pub(super) fn lose_misdirected(&mut self, node: usize) {
        if let Some(down_ms) = self.nodes[node].disk.is_due() {
            self.power_off(node, down_ms);
        }
    }

    /// Ends all faults of disks.
    pub(super) fn heal_disks(&self) {
        for disk in self.all_disks() {
            disk.set_faults(|faults| *faults = DiskFaults::default());
        }
    }

    fn all_disks(&self) -> Vec<SimDisk> {
        let nodes = self.nodes.iter().map(|node| node.disk.clone());
        let actors = self.actors.list.iter();
        let disks = actors.filter_map(|actor| match &actor.role {
            Role::Worker(worker) => Some(worker.disk.clone()),
            Role::Buyer(buyer) => Some(buyer.disk.clone()),
            Role::Trader(_) => None,
        });
        nodes.chain(disks).collect()
    }

    fn lose_disk(&mut self, node: usize) {
        self.nodes[node].crash();
        self.replace_machine(node);
    }

    /// Replaces a machine whose disk is gone or unreliable with a new replica.
    pub(super) fn replace_machine(&mut self, node: usize) {
        let new = ReplicaId::new(self.next_id).expect("ids begin at one");
        self.next_id += 1;
        self.counts.replaced += 1;
        let machine = &mut self.nodes[node];
        machine.crash();
        machine.disk.wipe();
        machine.rows.wipe();
        machine.harmed = false;
        // If this machine is still waiting for its admission, it keeps the id of the first replica
        // that it replaces.
        machine.replaces = machine.replaces.or(Some(machine.id));
        machine.id = new;
        self.schedule_event(self.now + 200, Event::Start { node });
    }

    fn transfer_leadership(&mut self, to: usize) {
        let to = self.nodes[to].id;
        if let Some(leader) = self.find_leader() {
            self.nodes[leader].apply_event(self.now, CoreEvent::Transfer(to));
            self.run_rounds(leader);
        }
    }

    pub(super) fn find_leader(&self) -> Option<usize> {
        let leads = |node: &usize| {
            let running = self.nodes[*node].running.as_ref();
            running.is_some_and(|running| running.replica().is_leader())
                && self.nodes[*node].busy_until <= self.now
        };
        let term = |node: &usize| {
            self.nodes[*node]
                .running
                .as_ref()
                .map(|running| running.replica().term())
        };
        (0..self.nodes.len()).filter(leads).max_by_key(term)
    }
}

fn fault_duration(fault: &Fault) -> Option<u64> {
    match fault {
        Fault::Partition { ms, .. }
        | Fault::OneWay { ms, .. }
        | Fault::Cut { ms, .. }
        | Fault::SlowLink { ms, .. }
        | Fault::Storm { ms, .. }
        | Fault::Full { ms, .. }
        | Fault::AllFull { ms }
        | Fault::SlowDisk { ms, .. }
        | Fault::ReplaceApart { ms, .. }
        | Fault::Forge { ms, .. }
        | Fault::Lie { ms, .. }
        | Fault::Reorder { ms } => Some(*ms),
        _ => None,
    }
}

fn name(fault: &Fault) -> &'static str {
    match fault {
        Fault::Crash { .. } => "crash",
        Fault::Kill { .. } => "kill",
        Fault::Blackout { .. } => "blackout",
        Fault::Pause { .. } => "pause",
        Fault::ClockJump { .. } => "clock_jump",
        Fault::Partition { .. } => "partition",
        Fault::OneWay { .. } => "one_way",
        Fault::Cut { .. } => "cut",
        Fault::SlowLink { .. } => "slow_link",
        Fault::Storm { .. } => "storm",
        Fault::SyncFails { .. } => "sync_fails",
        Fault::Full { .. } => "full",
        Fault::AllFull { .. } => "all_full",
        Fault::Misdirect { .. } => "misdirect",
        Fault::SlowDisk { .. } => "slow_disk",
        Fault::ShortRead { .. } => "short_read",
        Fault::FlipBit { .. } => "flip_bit",
        Fault::Replace { .. } => "replace",
        Fault::ReplaceApart { .. } => "replace_apart",
        Fault::Views { .. } => "views",
        Fault::Transfer { .. } => "transfer",
        Fault::Forge { .. } => "forge",
        Fault::Lie { .. } => "lie",
        Fault::WrongState { .. } => "wrong_state",
        Fault::Reorder { .. } => "reorder",
    }
}
