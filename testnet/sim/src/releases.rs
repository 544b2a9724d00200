//! Plays releases of the program: some machines begin with one that carries out the first version
//! of the rules only. When a later one takes effect that the operators announced, they must stop
//! before the first entry that they would misread, and go on from the same disk once the latest
//! release is installed.

use souk_market::RULES_VERSION;

use super::checker::Violation;
use super::world::{Event, World};

/// How long it takes a person to install a release on a machine whose validator has stopped.
const INSTALL_MS: u64 = 1_000;

impl World {
    /// Installs the latest release on a machine whose program is too old for the market. The latest
    /// one never is.
    pub(super) fn install_release(&mut self, node: usize) {
        let machine = &mut self.nodes[node];
        machine.kill();
        if machine.rules_version_max >= RULES_VERSION {
            let (replica, reason) = (machine.id.get(), "the latest release is too old".to_owned());
            let violation = Violation::RefusesItself { replica, reason };
            return self.checker.record_violation(violation);
        }
        machine.rules_version_max = RULES_VERSION;
        self.counts.releases_installed += 1;
        self.schedule_event(self.now + INSTALL_MS, Event::Start { node });
    }
}
