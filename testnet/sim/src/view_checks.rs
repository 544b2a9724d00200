//! Tests the views of a replica, the digests of its state that it can always rebuild: damages them
//! while the replica is down, and checks that after the restart they match the results of the
//! group.

use souk_consensus::LogIndex;
use souk_consensus::views;

use super::CHECKPOINT_ENTRIES;
use super::checker::Violation;
use super::fake_store::Harm;
use super::world::World;

impl World {
    /// Cuts the power of a machine, and damages its views while it is off.
    pub(super) fn harm_views(&mut self, node: usize, harm: Harm, down_ms: u64) {
        if self.nodes[node].running.is_none() {
            return;
        }
        self.power_off(node, down_ms);
        let rows = self.nodes[node].rows.clone();
        rows.harm_rows(harm, self.nodes[node].random());
    }

    /// Checks the views: they must be readable, match the group, and hold everything that this life
    /// has reached.
    pub(super) fn check_views(&mut self, node: usize) {
        let Some(running) = &self.nodes[node].running else {
            return;
        };
        self.counts.views_rebuilt +=
            u64::from(running.views.rebuild_count() > running.views_rebuilt);
        let wrong = self.wrong_views(node);
        let Some(running) = &mut self.nodes[node].running else {
            return;
        };
        running.views_rebuilt = running.views.rebuild_count();
        if let Some(reason) = wrong {
            let replica = self.nodes[node].id.get();
            self.checker
                .record_violation(Violation::ViewsDiffer { replica, reason });
        }
    }

    fn wrong_views(&self, node: usize) -> Option<String> {
        let running = self.nodes[node].running.as_ref()?;
        let (seen, _) = match views::read(&running.views.rows().copy_rows()) {
            Ok(read) => read,
            Err(error) => return Some(error.to_string()),
        };
        let differs = |it: &&views::SeenCheckpoint| {
            let wanted = self.checker.state_at(it.index);
            wanted.is_some_and(|wanted| wanted != (it.history, it.state))
        };
        if let Some(other) = seen.iter().find(differs) {
            return Some(format!("entry {} is another", other.index));
        }
        let (from, to) = (running.viewed_from.0, running.replica().applied_index().0);
        let first = from / CHECKPOINT_ENTRIES * CHECKPOINT_ENTRIES + CHECKPOINT_ENTRIES;
        let mut reached = (first..=to).step_by(CHECKPOINT_ENTRIES as usize);
        let lacks = |index: &u64| {
            let place = seen.binary_search_by_key(&LogIndex(*index), |it| it.index);
            place.is_err()
        };
        reached
            .find(lacks)
            .map(|index| format!("entry {index} is missing"))
    }
}
