//! Decides which contents (such as weights and results) buyers and providers serve to each other,
//! by the rules of real nodes.

use std::sync::Arc;

use souk_market::{AccountKey, JobId, LeaseId};
use souk_memory::ContentId;
use souk_roles::access::Scope;
use souk_roles::job::{self, attempt_id};
use souk_roles::lease::{BuyerMessage, Failure, Opening};
use souk_roles::provider::{self, Answer, Arrival, Content, LeaseReaders, Past, Report};

use super::contents::CONTENT_BYTES;
use crate::machine::EPOCH_MS;
use crate::world::World;
use crate::world::actors::Role;

impl World {
    /// Returns whether one of these holders has a content, runs, and grants it to the requester for
    /// a job.
    fn is_held(
        &self,
        (scope, who): (Scope, AccountKey),
        id: ContentId,
        holders: &[AccountKey],
    ) -> bool {
        let runs = |holder: &&AccountKey| {
            let place = self.actors.place_of(**holder);
            place.is_some_and(|place| self.actors.list[place].role.is_running())
        };
        let contents = &self.jobs.contents;
        let mut have = holders.iter().filter(runs);
        have.any(|holder| {
            contents.has_content(*holder, id) && contents.has_granted(*holder, &scope, who, &id)
        })
    }

    /// Fetches a result of a buyer's own job. Returns whether the buyer has it now.
    pub(super) fn fetch_for_job(
        &mut self,
        actor: usize,
        job: JobId,
        id: ContentId,
        holders: &[AccountKey],
    ) -> bool {
        let buyer = self.actors.list[actor].account;
        let scope = Scope { buyer, job };
        let comes =
            self.jobs.contents.has_content(buyer, id) || self.is_held((scope, buyer), id, holders);
        if comes {
            self.jobs.contents.store_content(buyer, id);
        }
        comes
    }

    /// Updates a buyer's grants to its providers from the messages that it sends them.
    pub(super) fn serve_for_job(&mut self, actor: usize, action: &job::Action) {
        let (account, now) = (self.actors.list[actor].account, self.now);
        let clock_ms = self.actors.list[actor].moment_at(now).log.0;
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let root = buyer.job.as_ref().map(|job| job.spec.job);
        let (job, to, ids): (_, _, Vec<ContentId>) = match action {
            job::Action::Open {
                leg,
                provider,
                opening: Opening::Start(start),
            } => {
                self.jobs.talks.insert((actor, *leg), *provider);
                let (parts, first) = (start.parts.len(), start.first.number);
                let witness = &mut buyer.witness;
                witness.on_started(*leg, start.lease, parts, first, now);
                let parts = start.parts.iter();
                let parts = parts.flat_map(|part| part.weights.iter().chain([&part.graph]));
                let given = start.first.inputs.iter().map(|(_, id)| id);
                (start.job, *provider, parts.chain(given).copied().collect())
            }
            job::Action::SendMessage {
                leg,
                message: BuyerMessage::Next(request),
            } => {
                buyer.witness.on_asked(*leg, request.number, now);
                let to = self.jobs.talks.get(&(actor, *leg)).copied();
                let (Some(root), Some(to)) = (root, to) else {
                    return;
                };
                let given = request.inputs.iter().map(|(_, id)| *id);
                (attempt_id(root, leg.attempt), to, given.collect())
            }
            job::Action::Open {
                opening: Opening::Resume(lease),
                ..
            } => {
                let ahead_ms = clock_ms as i64 - (EPOCH_MS + now) as i64;
                return buyer.witness.on_resumed(*lease, ahead_ms);
            }
            job::Action::HandOn { job, to, offer } => (*job, *to, vec![offer.tensor]),
            _ => return,
        };
        let scope = Scope {
            buyer: account,
            job,
        };
        self.jobs.contents.begin_serving(account, scope);
        let readers = Arc::new([to].into());
        self.jobs
            .contents
            .grant_contents(account, scope, &readers, &ids);
    }

    /// Updates a provider's grants from its core's actions.
    pub(super) fn serve_for_lease(&mut self, actor: usize, action: &provider::Action) {
        let account = self.actors.list[actor].account;
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        match action {
            provider::Action::Learn { buyer, start } => {
                let readers = LeaseReaders::new(*buyer, start);
                self.jobs.contents.begin_serving(account, readers.scope);
                worker.readers.insert(start.lease, readers);
                if start.sequences > 0 {
                    worker.sessions.insert(start.lease, Default::default());
                }
            }
            provider::Action::Tell(Report::Failed { lease, .. }) => self.end_serving(actor, *lease),
            provider::Action::Tell(Report::Done { body, .. }) => {
                self.end_serving(actor, body.lease);
            }
            _ => {}
        }
    }

    fn end_serving(&mut self, actor: usize, lease: LeaseId) {
        let account = self.actors.list[actor].account;
        if let Role::Worker(worker) = &mut self.actors.list[actor].role
            && let Some(readers) = worker.readers.remove(&lease)
        {
            self.jobs.contents.end_grants(account, readers.scope);
        }
    }

    /// Fetches a lease's contents from running holders that grant them.
    pub(super) fn fetch_contents(
        &mut self,
        actor: usize,
        lease: LeaseId,
        wanted: &[Content],
        holders: &[AccountKey],
    ) -> Answer {
        let account = self.actors.list[actor].account;
        let Role::Worker(worker) = &self.actors.list[actor].role else {
            unreachable!("providers bring");
        };
        let readers = worker.readers.get(&lease).cloned();
        let readers = readers.expect("it is learned before anything comes for it");
        let scope = readers.scope;
        let mut arrivals = Vec::new();
        for Content { id, what, kind } in wanted {
            let here = self.jobs.contents.can_use(account, scope.buyer, *id);
            if !here && !self.is_held((scope, account), *id, holders) {
                return Answer::NotArrived(Failure::Input(format!("{what}: nobody gives it")));
            }
            let contents = &mut self.jobs.contents;
            contents.store_content(account, *id);
            contents.grant_contents(account, scope, readers.of_content(*kind), &[*id]);
            arrivals.push(Arrival {
                id: *id,
                bytes: CONTENT_BYTES,
                moved: if here { 0 } else { CONTENT_BYTES },
            });
        }
        Answer::Arrived(arrivals)
    }

    /// Records the results of a lease.
    pub(super) fn on_made(&mut self, actor: usize, lease: LeaseId, made: &[(String, ContentId)]) {
        let account = self.actors.list[actor].account;
        let Role::Worker(worker) = &self.actors.list[actor].role else {
            return;
        };
        let Some(readers) = worker.readers.get(&lease) else {
            return;
        };
        for (name, id) in made {
            let may_have = readers.of_output(name);
            let contents = &mut self.jobs.contents;
            contents.grant_contents(account, readers.scope, may_have, &[*id]);
        }
    }

    /// Makes a restarted provider serve its earlier results.
    pub(super) fn serve_past(&mut self, account: AccountKey, past: &Past) {
        for (scope, made) in past.open_lease_outputs() {
            let contents = &mut self.jobs.contents;
            contents.begin_serving(account, scope);
            contents.grant_contents(account, scope, &Arc::new([scope.buyer].into()), &made);
            contents.end_grants(account, scope);
        }
    }
}
