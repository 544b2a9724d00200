//! The words of `/souk/lease/5`, which buyers say, for those that the provider's core knows.

use std::collections::BTreeMap;
use std::time::Duration;

use souk_market::AccountKey;
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::lease as new;

use crate::folder::contact::Contact;
use crate::protocols::lease as old;

/// What a stream is about: how what is said on it is put.
pub(super) enum Table {
    /// The work of a lease.
    Work {
        /// Names of its parts.
        parts: Vec<String>,
        /// Whether it is about one request alone.
        alone: bool,
        /// What each request gave so far.
        made: BTreeMap<u32, Vec<(String, ContentId)>>,
    },
    /// A buyer that comes back is told how it stands, and no more.
    Back,
    /// An offer.
    Offer,
}

/// What people are shown of a lease's work.
#[derive(Clone, Default)]
pub(super) struct Shown {
    pub(super) moved: Vec<old::Moved>,
    pub(super) report: souk_scheduler::execution::report::Report,
    pub(super) timeline: souk_scheduler::execution::timeline::Timeline,
}

/// A first word, and how what follows is put.
pub(super) fn opening(opening: old::Opening) -> (new::Opening, Table) {
    match opening {
        old::Opening::Start(start) => of_start(*start, true),
        old::Opening::Stream(start) => of_start(*start, false),
        old::Opening::Resume(lease) => (new::Opening::Resume(lease), Table::Back),
        old::Opening::Offer(offer) => (new::Opening::Offer(of_offer(offer, 0)), Table::Offer),
        old::Opening::Hand { request, offer } => {
            (new::Opening::Offer(of_offer(offer, request)), Table::Offer)
        }
    }
}

fn of_start(start: old::Start, last: bool) -> (new::Opening, Table) {
    let table = Table::Work {
        parts: start.parts.iter().map(|part| part.name.clone()).collect(),
        alone: last,
        made: BTreeMap::new(),
    };
    let inputs = start.parts.iter().flat_map(|part| &part.inputs);
    let held = inputs.filter_map(|input| match input.source {
        old::Source::Buyer(id) => Some((input.name.clone(), id)),
        old::Source::Lease { .. } | old::Source::Own => None,
    });
    let held: BTreeMap<String, ContentId> = held.collect();
    let start = new::Start {
        lease: start.lease,
        job: start.job,
        parts: start.parts.into_iter().map(of_part).collect(),
        peers: start.peers.into_iter().map(of_contact).collect(),
        priority: start.priority,
        first: new::Request {
            number: 0,
            inputs: held.into_iter().collect(),
        },
        last,
    };
    (new::Opening::Start(Box::new(start)), table)
}

fn of_part(part: old::Part) -> new::Part {
    let input = |input: old::Input| new::Input {
        name: input.name,
        source: match input.source {
            old::Source::Buyer(_) => new::Source::Buyer,
            old::Source::Lease { lease, provider } => new::Source::Lease { lease, provider },
            old::Source::Own => new::Source::Own,
        },
    };
    let output = |output: old::Output| new::Output {
        name: output.name,
        consumers: output.consumers,
    };
    new::Part {
        name: part.name,
        graph: part.graph,
        weights: part.weights,
        inputs: part.inputs.into_iter().map(input).collect(),
        outputs: part.outputs.into_iter().map(output).collect(),
        flops: part.flops,
        expected: micros(part.expected),
    }
}

fn of_contact(contact: Contact) -> new::Contact {
    let addresses = contact.addresses.iter();
    new::Contact {
        account: AccountKey(contact.account),
        addresses: addresses.map(ToString::to_string).collect(),
    }
}

/// Where a peer is, as the network takes it; addresses that are none are left out.
pub(super) fn contact(contact: &new::Contact) -> Contact {
    let addresses = contact.addresses.iter();
    Contact {
        account: contact.account.0,
        addresses: addresses.filter_map(|text| text.parse().ok()).collect(),
    }
}

fn of_offer(offer: old::Offer, request: u32) -> new::Offer {
    new::Offer {
        from: offer.from,
        to: offer.to,
        request,
        name: offer.name,
        tensor: offer.tensor,
    }
}

/// What another provider is asked with, about one request alone or one of many.
pub(super) fn offering(offer: &new::Offer, alone: bool) -> old::Opening {
    let request = (!alone).then_some(offer.request);
    to_offer(offer).opening(request)
}

fn to_offer(offer: &new::Offer) -> old::Offer {
    old::Offer {
        from: offer.from,
        to: offer.to,
        name: offer.name.clone(),
        tensor: offer.tensor,
    }
}

pub(super) fn of_taken(taken: old::Taken) -> new::Taken {
    match taken {
        old::Taken::Yes => new::Taken::Yes,
        old::Taken::No => new::Taken::No,
    }
}

pub(super) fn to_taken(taken: new::Taken) -> old::Taken {
    match taken {
        new::Taken::Yes => old::Taken::Yes,
        new::Taken::No => old::Taken::No,
    }
}

/// What a buyer says after its first word.
pub(super) fn of_closing(closing: old::Closing) -> new::BuyerWord {
    match closing {
        old::Closing::Signed(receipt) => new::BuyerWord::Signed(receipt),
        old::Closing::Refused { reason } => new::BuyerWord::Refused { reason },
        old::Closing::Enough { parts } => new::BuyerWord::Limit { parts },
        old::Closing::Next(request) => new::BuyerWord::Next(new::Request {
            number: request.number,
            inputs: request.inputs,
        }),
        old::Closing::Over => new::BuyerWord::Limit { parts: 0 },
    }
}

/// The failure of a core, as it is told.
pub(super) fn to_failure(failure: new::Failure) -> old::Failure {
    match failure {
        new::Failure::Lease(why) => old::Failure::Lease(why),
        new::Failure::Started => old::Failure::Started,
        new::Failure::Full => old::Failure::Full,
        new::Failure::Input(why) => old::Failure::Input(why),
        new::Failure::Compile(why) => old::Failure::Compile(why),
        new::Failure::Run(why) => old::Failure::Run(why),
        new::Failure::Forgotten => old::Failure::Forgotten,
        new::Failure::Expired => old::Failure::Expired,
        new::Failure::Stopping => old::Failure::Stopping,
        new::Failure::Limit(why) => old::Failure::Limit(why),
        new::Failure::Crashed(why) => old::Failure::Crashed(why),
        new::Failure::Memory(bytes) => old::Failure::Memory(bytes),
        failure @ new::Failure::Journal(_) => old::Failure::Run(failure.to_string()),
    }
}

/// The failure of an executor, as a core has it.
pub(super) fn of_failure(failure: old::Failure) -> new::Failure {
    match failure {
        old::Failure::Lease(why) => new::Failure::Lease(why),
        old::Failure::Started => new::Failure::Started,
        old::Failure::Full => new::Failure::Full,
        old::Failure::Input(why) => new::Failure::Input(why),
        old::Failure::Compile(why) => new::Failure::Compile(why),
        old::Failure::Run(why) => new::Failure::Run(why),
        old::Failure::Forgotten => new::Failure::Forgotten,
        old::Failure::Expired => new::Failure::Expired,
        old::Failure::Stopping => new::Failure::Stopping,
        old::Failure::Limit(why) => new::Failure::Limit(why),
        old::Failure::Crashed(why) => new::Failure::Crashed(why),
        old::Failure::Memory(bytes) => new::Failure::Memory(bytes),
    }
}

pub(super) fn micros(time: Duration) -> Micros {
    Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

impl Table {
    /// What is said on the stream for a word of the core, if anything is.
    pub(super) fn event(&mut self, word: new::ProviderWord, shown: Shown) -> Option<old::Event> {
        let told = match word {
            new::ProviderWord::Accepted => old::Event::Accepted,
            new::ProviderWord::Failed(failure) => old::Event::Failed(to_failure(failure)),
            new::ProviderWord::Finished(finished) => {
                old::Event::Finished(Box::new(to_finished(*finished, shown)))
            }
            word => return self.at_work(word),
        };
        Some(told)
    }

    fn at_work(&mut self, word: new::ProviderWord) -> Option<old::Event> {
        let Table::Work { parts, alone, made } = self else {
            return None;
        };
        let (alone, last) = (*alone, parts.len().saturating_sub(1));
        match word {
            new::ProviderWord::Fetched {
                pieces,
                held,
                bytes,
            } => Some(old::Event::Fetched {
                pieces,
                held,
                bytes,
            }),
            new::ProviderWord::Ready => Some(old::Event::Compiled),
            new::ProviderWord::Running { part, .. } => {
                let part = parts.get(part as usize)?.clone();
                Some(old::Event::Running { part })
            }
            new::ProviderWord::Made { part, .. } if alone => {
                ((part as usize) < last).then_some(old::Event::Ran)
            }
            new::ProviderWord::Made {
                request,
                part,
                outputs,
            } => {
                made.entry(request).or_default().extend(outputs);
                let is_last = part as usize == last;
                let outputs = is_last.then(|| made.remove(&request))??;
                let answered = old::Answered { request, outputs };
                Some(old::Event::Answered(answered))
            }
            new::ProviderWord::Untaken(untaken) => {
                let request = (!alone).then_some(untaken.offer.request);
                Some(old::Event::Untaken(Box::new(old::Untaken {
                    consumer: untaken.consumer,
                    request,
                    offer: to_offer(&untaken.offer),
                    why: untaken.why,
                })))
            }
            // Of one request, the result says what was done.
            new::ProviderWord::Stalled(_) if alone => None,
            new::ProviderWord::Stalled(why) => Some(old::Event::Stalled(to_failure(why))),
            new::ProviderWord::Accepted
            | new::ProviderWord::Finished(_)
            | new::ProviderWord::Failed(_) => None,
        }
    }
}

fn to_finished(finished: new::Finished, shown: Shown) -> old::Finished {
    let outputs = finished.outputs.into_iter();
    old::Finished {
        receipt: finished.receipt,
        outputs: outputs.flat_map(|(_, outputs)| outputs).collect(),
        moved: shown.moved,
        report: shown.report,
        timeline: shown.timeline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(table: &mut Table, request: u32, part: u32, name: &str) -> Option<old::Event> {
        let outputs = vec![(name.to_owned(), ContentId::of(name.as_bytes()))];
        let word = new::ProviderWord::Made {
            request,
            part,
            outputs,
        };
        table.event(word, Shown::default())
    }

    fn table(alone: bool) -> Table {
        Table::Work {
            parts: vec!["one".to_owned(), "two".to_owned()],
            alone,
            made: BTreeMap::new(),
        }
    }

    #[test]
    fn a_request_of_a_stream_is_answered_with_what_all_its_parts_gave() {
        let mut table = table(false);
        assert!(made(&mut table, 3, 0, "a").is_none());
        assert!(made(&mut table, 4, 0, "b").is_none());
        let Some(old::Event::Answered(answered)) = made(&mut table, 3, 1, "c") else {
            panic!("it is answered");
        };
        let names = answered.outputs.iter().map(|(name, _)| name.as_str());
        assert_eq!(
            (answered.request, names.collect::<Vec<_>>()),
            (3, vec!["a", "c"])
        );
    }

    #[test]
    fn of_one_request_each_part_but_the_last_is_told() {
        let mut table = table(true);
        let told = made(&mut table, 0, 0, "a");
        assert!(matches!(told, Some(old::Event::Ran)));
        assert!(made(&mut table, 0, 1, "b").is_none(), "the result is");
    }

    #[test]
    fn a_buyer_that_comes_back_hears_how_it_stands_and_nothing_else() {
        let mut table = Table::Back;
        assert!(
            table
                .event(new::ProviderWord::Ready, Shown::default())
                .is_none()
        );
        let accepted = table.event(new::ProviderWord::Accepted, Shown::default());
        assert!(matches!(accepted, Some(old::Event::Accepted)));
    }
}
