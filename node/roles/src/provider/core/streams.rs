//! Handles the streams that peers open to a provider: the start of a lease, a buyer that comes
//! back, or the offer of a tensor. A stream that wants to start a lease waits until the log has
//! confirmed that lease.

use super::*;
use crate::tokens::card::TextCard;

impl ProviderCore {
    pub(super) fn on_opened(&mut self, stream: StreamId, peer: AccountKey, opening: Opening) {
        assert!(!self.streams.contains_key(&stream), "streams have numbers");
        match opening {
            Opening::Offer(offer) => {
                let taken = self.on_offer(peer, &offer);
                self.shared.push_effect(Action::Reply { stream, taken });
                self.shared.push_effect(Action::CloseStream { stream });
            }
            Opening::Resume(lease) => self.on_resumed(stream, peer, lease),
            Opening::Start(start) => self.on_start(stream, peer, start),
        }
    }

    pub(super) fn on_offer(&mut self, peer: AccountKey, offer: &Offer) -> OfferAnswer {
        let Some(lease) = self.leases.get_mut(&offer.to) else {
            return OfferAnswer::No;
        };
        lease.on_offer(&mut self.shared, peer, offer)
    }

    pub(super) fn on_resumed(&mut self, stream: StreamId, peer: AccountKey, id: LeaseId) {
        let mine = |buyer: AccountKey| buyer == peer;
        if let Some(lease) = self.leases.get_mut(&id).filter(|l| mine(l.buyer())) {
            let old = lease.stream;
            lease.on_resumed(&mut self.shared, stream);
            return self.on_back(old, stream, id);
        }
        if let Some(claim) = self.claims.get_mut(&id).filter(|c| mine(c.buyer)) {
            let old = claim.stream;
            if claim.on_resumed(&mut self.shared, stream) {
                return self.on_back(old, stream, id);
            }
        }
        // The log has closed it: there is nothing to sign.
        let message = match self.shared.result_for_buyer(id, peer) {
            Some(finished) => ProviderMessage::Finished(Box::new(finished.clone())),
            None => ProviderMessage::Failed(Failure::Forgotten),
        };
        self.shared.send_message(Some(stream), message);
        self.shared.push_effect(Action::CloseStream { stream });
    }

    pub(super) fn on_back(&mut self, old: Option<StreamId>, stream: StreamId, lease: LeaseId) {
        if let Some(old) = old {
            self.streams.remove(&old);
        }
        self.counts.resumed += 1;
        self.streams.insert(stream, Use::Lease(lease));
    }

    /// Returns the card of the model on sale, if one is and the work is no tab of it.
    fn other_card(&self, start: &Start) -> Option<TextCard> {
        let card = TextCard::of_resources(&self.shared.config.resources)?;
        let is_its_tab = start.is_tab() && start.parts[0].graph == card.id();
        (!is_its_tab).then_some(card)
    }

    pub(super) fn on_start(&mut self, stream: StreamId, peer: AccountKey, start: Box<Start>) {
        let lease = start.lease;
        let refused = if self.shared.stage >= Stage::Draining {
            Some(Failure::Stopping)
        } else if self.streams.len() >= STREAMS_MAX {
            Some(Failure::Full)
        } else if self.shared.journal.is_broken {
            Some(not_written("it takes nothing at the moment".to_owned()))
        } else if !start.is_bounded() {
            let why = "the work has no parts, too many, or other inputs than it names";
            Some(Failure::Limit(why.to_owned()))
        } else if let Some(card) = self.other_card(&start) {
            Some(Failure::Limit(format!(
                "this provider sells tabs of {card} alone"
            )))
        } else {
            let wrong = without_source(&start).or_else(|| fed_wrongly(&start));
            wrong.map(|name| Failure::Input(format!("{name} has no source")))
        };
        if let Some(failure) = refused {
            return self.refuse_lease(stream, lease, failure);
        }
        self.streams.insert(stream, Use::Opening { peer, start });
        let wait = Wait::Opening(stream);
        self.shared.request_effect(wait, Action::LookAt { lease });
    }

    pub(super) fn refuse_lease(&mut self, stream: StreamId, lease: LeaseId, failure: Failure) {
        self.streams.remove(&stream);
        let report = Report::Refused {
            lease,
            failure: failure.clone(),
        };
        self.shared.push_effect(Action::Tell(report));
        self.shared
            .send_message(Some(stream), ProviderMessage::Failed(failure));
        self.shared.push_effect(Action::CloseStream { stream });
    }

    /// Handles the log's answer about the lease that a stream wants to start.
    pub(super) fn on_looked_up(
        &mut self,
        stream: StreamId,
        seen: Result<Option<Box<Lease>>, String>,
    ) {
        let Some(Use::Opening { peer, start }) = self.streams.get(&stream).cloned() else {
            return;
        };
        let id = start.lease;
        let lease = match seen {
            Ok(Some(lease)) => match self.lease_refusal(&lease, peer, &start) {
                None => lease,
                Some(failure) => return self.refuse_lease(stream, id, failure),
            },
            Ok(None) => {
                let why = "no such lease is in the log".to_owned();
                return self.refuse_lease(stream, id, Failure::Lease(why));
            }
            Err(why) => return self.refuse_lease(stream, id, Failure::Lease(why)),
        };
        self.counts.begun += 1;
        let core = LeaseCore::begin(&mut self.shared, lease, start, stream);
        self.leases.insert(id, core);
        self.streams.insert(stream, Use::Lease(id));
    }

    /// Returns why the provider must not accept a lease, by the log's state of it.
    pub(super) fn lease_refusal(
        &self,
        lease: &Lease,
        peer: AccountKey,
        start: &Start,
    ) -> Option<Failure> {
        let why = if lease.provider != self.shared.config.account {
            "it is another provider's"
        } else if lease.buyer != peer {
            "it is another buyer's"
        } else if lease.job != start.job {
            "it is for another job"
        } else if lease.state != LeaseState::Active || lease.end_time() <= self.shared.now.log {
            "it has ended"
        } else if self.shared.begun.has_begun(lease.id) {
            return Some(Failure::Started);
        } else if self.shared.stage >= Stage::Draining {
            return Some(Failure::Stopping);
        } else if self.leases.len() >= RUNNING_MAX {
            return Some(Failure::Full);
        } else {
            return None;
        };
        Some(Failure::Lease(why.to_owned()))
    }

    pub(super) fn on_message_received(
        &mut self,
        stream: StreamId,
        message: crate::lease::BuyerMessage,
    ) {
        match self.streams.get(&stream) {
            None => {}
            Some(Use::Opening { start, .. }) => {
                // It is told to begin first.
                let why = "the buyer wants nothing of it any more".to_owned();
                let lease = start.lease;
                self.forget_opening(stream);
                self.refuse_lease(stream, lease, Failure::Input(why));
            }
            Some(Use::Lease(id)) => {
                let id = *id;
                if let Some(lease) = self.leases.get_mut(&id) {
                    let end = lease.on_message(&mut self.shared, message);
                    let is_hung = lease.stream.is_none();
                    if is_hung {
                        self.streams.remove(&stream);
                    }
                    self.on_end(id, end);
                } else if let Some(claim) = self.claims.get_mut(&id) {
                    claim.on_message(&mut self.shared, message);
                    if claim.stage == ClaimStage::Keeping {
                        self.counts.signed += 1;
                    }
                    self.drop_hung(id);
                }
            }
        }
    }

    pub(super) fn on_stream_closed(&mut self, stream: StreamId) {
        match self.streams.remove(&stream) {
            None => {}
            Some(Use::Opening { .. }) => self.forget_opening(stream),
            Some(Use::Lease(id)) => {
                if let Some(lease) = self.leases.get_mut(&id) {
                    let end = lease.on_lost(&mut self.shared);
                    self.on_end(id, end);
                } else if let Some(claim) = self.claims.get_mut(&id) {
                    claim.on_lost(&mut self.shared);
                }
            }
        }
    }

    pub(super) fn forget_opening(&mut self, stream: StreamId) {
        self.shared
            .stop_effects(|wait| matches!(wait, Wait::Opening(of) if *of == stream));
    }

    /// Forgets the streams of a lease that another stream has replaced.
    pub(super) fn drop_hung(&mut self, id: LeaseId) {
        let at_work = self.leases.get(&id).and_then(|lease| lease.stream);
        let owed = self.claims.get(&id).and_then(|claim| claim.stream);
        let kept = at_work.or(owed);
        self.streams.retain(|stream, user| match user {
            Use::Lease(lease) if *lease == id => kept == Some(*stream),
            _ => true,
        });
    }
}
