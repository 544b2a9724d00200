//! Carries out the actions that a job's core returns: it plans, buys leases, queries the market,
//! fetches and compares results, and signs receipts. An action that takes time runs as an effect, a
//! future whose answer comes back to the core as an event.

use bytes::Bytes;
use libp2p::PeerId;
use souk_folder::clock::unix_ms;
use souk_folder::key;
use souk_market::{Acceptance, AccountKey, Command, JobId};
use souk_memory::ContentId;
use souk_memory::transfers::Urgency;
use souk_network::content::inline_contents::{self, TO_PROVIDER_BYTES_MAX};
use souk_network::content::transfers::FetchError;
use souk_network::protocols::lease::offer_tensor;
use souk_roles::access::Scope;
use souk_roles::lease::{Contact, Offer, OfferAnswer};
use tokio::time::timeout;

use super::*;
use crate::buyer::compare::{Tolerance, is_within_tolerance};
use crate::buyer::holders;
use crate::buyer::output_bounds::OutputBound;
use crate::client::trader::TradeError;

/// An output to fetch.
struct WantedOutput {
    name: String,
    id: ContentId,
    bound: OutputBound,
}

impl Shell {
    /// Begins an action.
    pub(super) fn begin_action(&mut self, ticket: Ticket, action: Action) {
        let buyer = self.buyer.clone();
        match action {
            Action::Plan(wanted) => {
                let planning = self.planner.plan_work(&wanted);
                self.effects.start(ticket, async move {
                    EffectOutcome::Planned(planning.await.map(Box::new))
                });
            }
            Action::Buy { id, bids } => self.buy_leases(ticket, id, Command::PlaceGang(bids)),
            Action::Look { ids } => self.effects.start(ticket, fetch_leases(buyer, ids)),
            Action::Find { providers } => {
                self.effects.start(ticket, find_providers(buyer, providers))
            }
            Action::Follow { leases } => self.follow_leases(&leases),
            Action::Command(command) => self.effects.start(ticket, submit_command(buyer, *command)),
            Action::Open {
                leg,
                provider,
                opening,
            } => self.open_stream(leg, provider, opening),
            Action::SendMessage { leg, message } => self.send_message(leg, message),
            Action::CloseStream { leg } => self.close_stream(leg),
            Action::Serve { contents } => {
                let served = self.serve_contents(&contents);
                self.queue_answer(ticket, served);
            }
            action @ Action::Fetch { .. } => self.fetch_output(ticket, action),
            Action::HandOn { job, to, offer } => self.hand_tensor_on(ticket, job, to, offer),
            Action::Compare {
                left,
                right,
                tolerance_ppm,
            } => self.compare_aside(ticket, (left, right), tolerance_ppm),
            Action::Sign { receipt } => {
                let signed = receipt.sign_as_buyer(buyer.trader.key().signing_key());
                self.queue_answer(ticket, Answer::Signed(Box::new(signed)));
            }
            Action::Keep { ids } => self.keep_values(ticket, &ids),
            Action::Record(facts) => self.record_facts(ticket, facts),
            Action::Give {
                request,
                outputs,
                is_evidence,
            } => {
                if is_evidence {
                    self.held.keep_answered(request);
                }
                self.deliver_answer(ticket, request, &outputs);
            }
            Action::Tell(event) => self.report_event(event),
            Action::Warn => self.warning.notify_one(),
            Action::Stop(stopped) => self.effects.stop(stopped),
            Action::Over(outcome) => self.outcome = Some(*outcome),
        }
    }

    /// Fetches an output, unless it came with the message that named it.
    fn fetch_output(&mut self, ticket: Ticket, fetch: Action) {
        let Action::Fetch {
            job,
            request,
            name,
            id,
            holders,
            patience,
        } = fetch
        else {
            unreachable!("{fetch:?} fetches no output");
        };
        let output = WantedOutput {
            bound: self.bounds.bound_of(&name),
            name,
            id,
        };
        let patience = Duration::from(patience);
        let (buyer, room) = (self.buyer.clone(), self.transfers.clone());
        let scope = self.served.job_scope(job);
        let fetching = self.held.hold_fetched(request, output.id);
        let along = self.inline_contents.take_content(&output.id);
        let along = along.and_then(|(leg, bytes)| {
            let talk = self.talks.get(&leg)?;
            Some((key::peer_of(&talk.provider.0).ok()?, bytes))
        });
        self.effects.start(ticket, async move {
            // The semaphore is never closed.
            let _room = room.acquire_owned().await;
            let is_shared = holders.len() > 1;
            let share = if is_shared { patience / 2 } else { patience };
            let fetched = fetch_from_holders(&buyer, scope, &output, along, &holders);
            let mut fetched = timeout(share, fetched).await.ok();
            if fetched.is_none() && is_shared {
                // Another holder was slow, perhaps on purpose: the maker has the rest.
                let maker = &holders[..1];
                let again = fetch_from_holders(&buyer, scope, &output, None, maker);
                fetched = timeout(share, again).await.ok();
            }
            drop(fetching);
            EffectOutcome::Is(fetched.unwrap_or_else(|| {
                let seconds = patience.as_secs();
                let why = format!("it had not arrived after {seconds} s");
                Answer::NotFetched(FetchFault::Lost(why))
            }))
        });
    }

    /// Offers a tensor that is here to a provider, which can then fetch it.
    fn hand_tensor_on(&mut self, ticket: Ticket, job: JobId, to: AccountKey, offer: Offer) {
        self.served.grant_contents(job, to, &[offer.tensor]);
        let buyer = self.buyer.clone();
        self.effects.start(ticket, hand_on(buyer, to, offer));
    }

    /// Compares two contents on a thread of its own.
    fn compare_aside(
        &mut self,
        ticket: Ticket,
        (left, right): (ContentId, ContentId),
        tolerance_ppm: u32,
    ) {
        let buyer = self.buyer.clone();
        self.effects.start(ticket, async move {
            let comparing = move || compare_contents(&buyer, left, right, tolerance_ppm);
            let alike = tokio::task::spawn_blocking(comparing).await;
            EffectOutcome::Is(Answer::Compared(alike.unwrap_or(false)))
        });
    }

    /// Buys leases, unless a resting bid already made the first purchase.
    fn buy_leases(&mut self, ticket: Ticket, id: JobId, gang: Command) {
        self.buyer.remember_job(id);
        if std::mem::take(&mut self.is_bought) {
            // The core then looks for leases under this id, and uses the one that is there.
            let why = "bought by a bid that rested".to_owned();
            return self.queue_answer(ticket, Answer::Uncertain(why));
        }
        self.effects
            .start(ticket, submit_purchase(self.buyer.clone(), gang));
    }

    /// Follows these leases from now on, and no others.
    fn follow_leases(&mut self, leases: &[LeaseId]) {
        self.followed.retain(|lease, _| leases.contains(lease));
        for lease in leases {
            let buyer = &self.buyer;
            let follow = || {
                let (broker, account) = (buyer.broker(), buyer.account());
                buyer.lease_follower.follow_lease(broker, account, *lease)
            };
            self.followed.entry(*lease).or_insert_with(follow);
        }
    }

    /// Stores graphs and weights where providers can fetch them. Tensors are stored when they
    /// arrive.
    fn serve_contents(&mut self, contents: &[ContentId]) -> Answer {
        let store = self.buyer.tensors.store();
        for id in contents.iter().filter(|id| !self.held.holds(id)) {
            self.served.pin_content(*id);
            if store.contains(id) {
                continue;
            }
            let Some(bytes) = self.planner.find_content(id) else {
                return Answer::NotServed(format!("{id} is no longer in memory"));
            };
            if let Err(error) = store.put_as(*id, bytes) {
                return Answer::NotServed(error.to_string());
            }
        }
        Answer::Served
    }

    fn keep_values(&mut self, ticket: Ticket, ids: &[ContentId]) {
        let store = self.buyer.tensors.store();
        let blob = |id: &ContentId| match store.get(id) {
            Ok(Some(blob)) => Ok((*id, blob)),
            Ok(None) => Err(format!("{id} is no longer in memory")),
            Err(error) => Err(error.to_string()),
        };
        match ids.iter().map(blob).collect() {
            Ok(values) => self.write(ticket, JournalWrite::Values(values)),
            Err(why) => self.queue_answer(ticket, Answer::NotWritten(why)),
        }
    }

    /// Passes an answer to the caller, who must confirm when it is stored.
    fn deliver_answer(&mut self, ticket: Ticket, number: u32, outputs: &[(String, ContentId)]) {
        let store = self.buyer.tensors.store();
        let tensor = |(name, id): &(String, ContentId)| {
            Some((name.clone(), store.get_tensor(id).ok().flatten()?))
        };
        let outputs: Option<BTreeMap<String, Tensor>> = outputs.iter().map(tensor).collect();
        let Some(mut outputs) = outputs else {
            let why = "an answer is no longer in memory: it is too large";
            self.fault = Some(Reason::Memory(why.to_owned()));
            return self.queue_answer(ticket, Answer::NotTaken);
        };
        outputs.extend(self.own_outputs.take_outputs(number));
        let answered = self.held.take_answered(number);
        let (answer, kept) = super::super::Answer::new(number, outputs);
        // If the caller is gone, the answer is dropped and thus not kept.
        let _ = self.answers.send(answer);
        self.effects.start(ticket, async move {
            let kept = kept.await;
            drop(answered);
            EffectOutcome::Is(match kept {
                Ok(()) => Answer::Taken,
                Err(_) => Answer::NotTaken,
            })
        });
    }

    /// Passes an event to the user, and records its times and receipts.
    fn report_event(&mut self, event: JobEvent) {
        self.watch.on_event(&event, Instant::now());
        match &event {
            JobEvent::Signed { leg, receipt } => {
                let shown = self.reports.remove(leg).unwrap_or_default();
                self.buyer
                    .record_link_samples(receipt.body.provider, &shown.moved);
                self.gathered.add((**receipt).clone(), shown);
            }
            JobEvent::NotCommanded { lease, why } => {
                tracing::error!(%lease, why,
                    "the market did not carry out a command; its rules will close the lease");
            }
            _ => {}
        }
        // Progress is for display: a slow or absent reader must not stop the job.
        let _ = self.progress.try_send(event);
    }
}

async fn submit_purchase(buyer: Buyer, gang: Command) -> EffectOutcome {
    EffectOutcome::Is(match buyer.trader.submit_one(gang).await {
        Ok(Acceptance::Ganged { trades }) => Answer::Bought(trades),
        Ok(_) => Answer::Uncertain("the market answered something else".to_owned()),
        Err(TradeError::Refused(refusal)) => Answer::NotBought(refusal),
        Err(error) => Answer::Uncertain(error.to_string()),
    })
}

async fn submit_command(buyer: Buyer, command: Command) -> EffectOutcome {
    let mut done = buyer.trader.submit_one(command.clone()).await;
    if let Err(TradeError::Uncertain(_)) = done {
        // A command can be repeated without further effect, and the answer states the result.
        done = buyer.trader.submit_one(command).await;
    }
    EffectOutcome::Is(match done {
        Ok(accepted) => Answer::from_command_result(Ok(accepted)),
        Err(TradeError::Refused(refusal)) => Answer::from_command_result(Err(refusal)),
        Err(error) => Answer::Commanded(Err(souk_roles::job::CommandError::Unreachable(
            error.to_string(),
        ))),
    })
}

async fn fetch_leases(buyer: Buyer, ids: Vec<JobId>) -> EffectOutcome {
    let leases = buyer.broker().job_leases(buyer.account(), &ids).await;
    EffectOutcome::Is(match leases {
        Ok(leases) => Answer::Leases(leases),
        Err(error) => Answer::NotSeen(error.to_string()),
    })
}

/// Finds the addresses of providers, and adds them to the network.
async fn find_providers(buyer: Buyer, providers: Vec<AccountKey>) -> EffectOutcome {
    let found = match buyer.broker().find_contacts(&providers).await {
        Ok(found) => found,
        Err(error) => return EffectOutcome::Is(Answer::NotSeen(error.to_string())),
    };
    for provider in &providers {
        let contact = found.iter().find(|contact| contact.account == provider.0);
        let Some(contact) = contact else {
            return EffectOutcome::Is(Answer::NotFound(*provider));
        };
        if let Err(error) = buyer.network.add_contact(contact).await {
            return EffectOutcome::Is(Answer::NotSeen(error.to_string()));
        }
    }
    EffectOutcome::Is(Answer::Found(found.iter().map(Contact::from).collect()))
}

async fn fetch_from_holders(
    buyer: &Buyer,
    scope: Scope,
    output: &WantedOutput,
    inline: Option<(PeerId, Bytes)>,
    holders: &[AccountKey],
) -> Answer {
    let (name, id) = (&output.name, output.id);
    if let Some((peer, bytes)) = inline
        && let Ok(came) = buyer.tensors.take_in((scope, peer), (id, bytes), false)
    {
        return check_output(name, id, &came.bytes);
    }
    let links = (buyer.tensors.links(), unix_ms());
    let whom = holders::in_order(holders, buyer.account(), links);
    let wanted = (id, output.bound.bytes_max);
    let fetching = buyer
        .tensors
        .fetch_bounded(Urgency::Awaited, scope, &whom, wanted);
    match fetching.await {
        Ok(fetched) => check_output(name, id, &fetched.bytes),
        // Another holder can state a false length; the maker cannot be blamed for it.
        Err(error) => not_fetched(&error, output.bound, holders.len() == 1),
    }
}

/// Returns the answer to a fetch that failed: no holder is at fault if this node has no room.
fn not_fetched(error: &FetchError, bound: OutputBound, is_maker_alone: bool) -> Answer {
    let why = error.to_string();
    match error {
        FetchError::Store(_) | FetchError::Full(_) => Answer::NotStored(why),
        FetchError::TooLong { length, .. } if bound.is_by_shape && is_maker_alone => {
            let why = format!("its {length} bytes are more than its shape takes");
            Answer::NotFetched(FetchFault::NoTensor(why))
        }
        _ => Answer::NotFetched(FetchFault::Lost(why)),
    }
}

/// Checks that a fetched output is a tensor.
fn check_output(name: &str, id: ContentId, bytes: &Bytes) -> Answer {
    match Tensor::from_blob(bytes) {
        Ok(_) => Answer::Fetched,
        Err(error) => {
            tracing::warn!(name, %id, %error, "an output is not a tensor");
            Answer::NotFetched(FetchFault::NoTensor(error.to_string()))
        }
    }
}

async fn hand_on(buyer: Buyer, to: AccountKey, handed: Offer) -> EffectOutcome {
    let name = handed.name.clone();
    let along = inline_contents::of_request(handed.request, vec![handed.tensor]);
    let along = buyer.tensors.inline_contents(along, TO_PROVIDER_BYTES_MAX);
    let taken = offer_tensor(&buyer.network, to, handed, along).await;
    EffectOutcome::Is(Answer::HandedOn(match taken {
        Ok(OfferAnswer::Yes) => {
            tracing::info!(name, consumer = %to, "the buyer forwarded a tensor to its consumer");
            Ok(())
        }
        Ok(OfferAnswer::No) => Err("it does not wait for the tensor".to_owned()),
        Err(why) => Err(why),
    }))
}

/// Returns whether two stored contents are equal within the tolerance.
fn compare_contents(buyer: &Buyer, left: ContentId, right: ContentId, tolerance_ppm: u32) -> bool {
    let tensor = |id| buyer.tensors.store().get_tensor(&id).ok().flatten();
    match (tensor(left), tensor(right)) {
        (Some(left), Some(right)) => {
            is_within_tolerance(&left, &right, Tolerance(f64::from(tolerance_ppm) / 1e6))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use souk_memory::StoreError;

    use super::*;

    #[test]
    fn a_fetch_that_finds_no_room_here_is_no_fault_of_its_holders() {
        let full = StoreError::MemoryFull {
            limit: 10,
            held: 8,
            wanted: 3,
        };
        let bound = OutputBound {
            bytes_max: 4,
            is_by_shape: true,
        };
        let answer = not_fetched(&FetchError::Store(full), bound, true);
        assert!(matches!(answer, Answer::NotStored(_)), "{answer:?}");
        let id = ContentId::for_content(b"an output");
        let answer = not_fetched(&FetchError::Nobody { id }, bound, true);
        let is_lost = matches!(answer, Answer::NotFetched(FetchFault::Lost(_)));
        assert!(is_lost, "{answer:?}");
    }

    #[test]
    fn an_output_longer_than_its_shape_is_not_fetched_and_wrong() {
        let id = ContentId::for_content(b"an output");
        let (length, limit) = (8 << 30, 1 << 20);
        let long = FetchError::TooLong { id, length, limit };
        let fault = |is_by_shape, is_maker_alone| {
            let bytes_max = limit;
            let bound = OutputBound {
                bytes_max,
                is_by_shape,
            };
            not_fetched(&long, bound, is_maker_alone)
        };
        let by_shape = fault(true, true);
        let is_wrong = matches!(by_shape, Answer::NotFetched(FetchFault::NoTensor(_)));
        assert!(is_wrong, "{by_shape:?}");
        // Nobody knows whether a shape that only the run shows is wrong, or which of several
        // holders stated the length.
        for open in [fault(false, true), fault(true, false)] {
            let is_lost = matches!(open, Answer::NotFetched(FetchFault::Lost(_)));
            assert!(is_lost, "{open:?}");
        }
    }
}
