//! Carries out the cheating of simulated buyers and providers: replaces or suppresses a buyer's
//! actions, and reports a wrong time for a provider's run.

use souk_market::{AccountKey, Command, LeaseId};
use souk_roles::clock::Micros;
use souk_roles::job::Action;
use souk_roles::lease::Opening;

use super::buyer::BuyerAsked;
use super::misconduct::{BuyerMisconduct, ProviderMisconduct};
use crate::world::World;
use crate::world::actors::Role;

impl World {
    /// Returns whether a buyer replaces an action of its job with a misdeed.
    pub(super) fn try_cheat(&mut self, actor: usize, action: &Action) -> bool {
        if !self.has_misconduct(actor, BuyerMisconduct::Holds) {
            return false;
        }
        match action {
            Action::Open {
                opening: Opening::Start(start),
                ..
            } => {
                self.counts.leases_held += 1;
                let lease = start.lease;
                let command = Command::StartWork { lease };
                self.carry_for_buyer(actor, BuyerAsked::Cheating, command);
                true
            }
            Action::Open { .. } => true,
            _ => false,
        }
    }

    /// Returns whether a buyer suppresses a command of its job, so that its lease continues.
    pub(super) fn is_kept_back(&self, actor: usize, command: &Command) -> bool {
        match command {
            Command::Settle(_) => self.never_signs(actor),
            Command::EndLease { .. } => self.has_misconduct(actor, BuyerMisconduct::Holds),
            _ => false,
        }
    }

    /// Returns the device time that a provider states for a run.
    pub(super) fn state_time(
        &mut self,
        misconduct: ProviderMisconduct,
        worked: Micros,
        is_wrong: bool,
    ) -> Micros {
        if misconduct != ProviderMisconduct::Overbills || !is_wrong {
            return worked;
        }
        self.counts.runs_overbilled += 1;
        let random = &mut self.jobs.random;
        Micros(worked.0 * random.draw_between(2, 40) + random.draw_below(6_000_000))
    }

    /// Disputes a lease that the buyer has just seen.
    pub(super) fn refuse_at_once(&mut self, actor: usize, lease: LeaseId) {
        self.counts.refused_at_once += 1;
        let command = Command::Dispute { lease };
        self.carry_for_buyer(actor, BuyerAsked::Cheating, command);
    }

    /// Returns a provider's misconduct, by its account.
    pub(super) fn provider_misconduct(&self, account: AccountKey) -> ProviderMisconduct {
        let place = self.actors.place_of(account);
        match place.map(|place| &self.actors.list[place].role) {
            Some(Role::Worker(worker)) => worker.misconduct,
            _ => ProviderMisconduct::None,
        }
    }

    pub(super) fn never_signs(&self, actor: usize) -> bool {
        self.has_misconduct(actor, BuyerMisconduct::NeverSigns)
            || self.has_misconduct(actor, BuyerMisconduct::Disputes)
    }

    pub(super) fn has_misconduct(&self, actor: usize, kind: BuyerMisconduct) -> bool {
        matches!(&self.actors.list[actor].role, Role::Buyer(buyer) if buyer.misconduct == kind)
    }
}
