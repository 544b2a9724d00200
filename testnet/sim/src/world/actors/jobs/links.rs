//! Simulates the streams between buyers' and providers' machines: they carry encoded messages, in
//! order, until a break.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use souk_market::AccountKey;
use souk_roles::effect::Ticket;
use souk_roles::job::{self, Leg};
use souk_roles::lease::{BuyerMessage, OfferAnswer, Opening, ProviderMessage};
use souk_roles::provider::{self, StreamId};

use super::EffectResult;
use crate::world::actors::{ActorEvent, Role};
use crate::world::{Event, World};

/// Maximum simulated milliseconds of a message.
const DELAY_MAX_MS: u64 = 25;

/// Lost messages per ten thousand; each breaks its stream.
const BROKEN_OF_TEN_THOUSAND: u64 = 15;

/// The purpose for which a machine opened a stream.
#[derive(Clone, Copy)]
pub enum Purpose {
    /// A leg of a job.
    Leg(Leg),
    /// An offer of a tensor.
    Offer(Ticket),
}

/// One stream between two machines.
struct Link {
    opener: (usize, u64),
    purpose: Purpose,
    other: (usize, u64),
    is_broken: bool,
    /// When the last message in each direction arrives.
    last: [u64; 2],
}

/// All open streams.
#[derive(Default)]
pub struct Links {
    next: u64,
    list: BTreeMap<u64, Link>,
}

/// A frame that arrives at an end of a stream.
pub enum Frame {
    /// A message.
    Message(Vec<u8>),
    /// The end of the stream.
    Break,
}

fn encode_message(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).expect("plain data in memory always encodes")
}

fn decode_message<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

impl World {
    /// Opens a stream to the machine of an account.
    pub(super) fn open_link(
        &mut self,
        opener: usize,
        purpose: Purpose,
        to: AccountKey,
        opening: &Opening,
    ) {
        let other = self.actors.place_of(to).unwrap_or(opener);
        let link = Link {
            opener: (opener, self.actors.list[opener].life),
            purpose,
            other: (other, self.actors.list[other].life),
            is_broken: false,
            last: [self.now; 2],
        };
        let number = self.jobs.links.next;
        self.jobs.links.next += 1;
        self.jobs.links.list.insert(number, link);
        self.send_frame(number, true, Frame::Message(encode_message(opening)));
    }

    pub(super) fn say_to_worker(&mut self, opener: usize, leg: Leg, message: &BuyerMessage) {
        let life = self.actors.list[opener].life;
        if let Some(link) = self.link_of(opener, life, leg) {
            self.send_frame(link, true, Frame::Message(encode_message(message)));
        }
    }

    pub(super) fn hang_up(&mut self, opener: usize, leg: Leg) {
        let life = self.actors.list[opener].life;
        if let Some(link) = self.link_of(opener, life, leg) {
            self.send_frame(link, true, Frame::Break);
            // The stream has lost its purpose, so the job receives nothing of it any more.
            self.jobs
                .links
                .list
                .entry(link)
                .and_modify(|it| it.purpose = Purpose::Offer(Ticket(u64::MAX)));
        }
    }

    fn link_of(&self, opener: usize, life: u64, leg: Leg) -> Option<u64> {
        let mut links = self.jobs.links.list.iter().rev();
        let is_it = |link: &Link| {
            let of_leg = matches!(link.purpose, Purpose::Leg(other) if other == leg);
            link.opener == (opener, life) && of_leg && !link.is_broken
        };
        links
            .find(|(_, link)| is_it(link))
            .map(|(number, _)| *number)
    }

    pub(super) fn say_to_buyer(&mut self, stream: StreamId, message: &ProviderMessage) {
        self.send_frame(stream.0, false, Frame::Message(encode_message(message)));
    }

    pub(super) fn reply_to_offer(&mut self, stream: StreamId, taken: OfferAnswer) {
        self.send_frame(stream.0, false, Frame::Message(encode_message(&taken)));
    }

    pub(super) fn hang_up_on_buyer(&mut self, stream: StreamId) {
        self.send_frame(stream.0, false, Frame::Break);
    }

    /// Sends a frame on a stream.
    fn send_frame(&mut self, number: u64, forth: bool, frame: Frame) {
        let delay = self.jobs.random.draw_between(1, DELAY_MAX_MS);
        let breaks = !self.healed && self.jobs.random.draw_below(10_000) < BROKEN_OF_TEN_THOUSAND;
        let Some(link) = self.jobs.links.list.get_mut(&number) else {
            return;
        };
        let last = &mut link.last[usize::from(forth)];
        *last = (*last).max(self.now + delay);
        let at = *last;
        let frame = if breaks { Frame::Break } else { frame };
        let to = if forth { link.other } else { link.opener };
        let event = ActorEvent::Frame {
            link: number,
            forth,
            frame,
        };
        self.schedule_event(at, Event::Actor(to.0, event));
        if breaks {
            self.record_trouble(link_opener(&self.jobs.links, number));
            self.record_trouble(link_other(&self.jobs.links, number));
            let back = if forth {
                link_opener(&self.jobs.links, number)
            } else {
                link_other(&self.jobs.links, number)
            };
            let event = ActorEvent::Frame {
                link: number,
                forth: !forth,
                frame: Frame::Break,
            };
            self.schedule_event(at, Event::Actor(back, event));
        }
    }

    /// Breaks all streams of a machine that has gone, and notifies their other ends.
    pub(super) fn break_links_of(&mut self, actor: usize) {
        let mut told = Vec::new();
        for (number, link) in &mut self.jobs.links.list {
            if link.is_broken {
                continue;
            }
            if link.opener.0 == actor {
                link.is_broken = true;
                told.push((*number, true, link.other.0));
            } else if link.other.0 == actor {
                told.push((*number, false, link.opener.0));
            }
        }
        for (link, forth, to) in told {
            let frame = Frame::Break;
            let event = ActorEvent::Frame { link, forth, frame };
            let delay = self.jobs.random.draw_between(1, DELAY_MAX_MS);
            self.schedule_event(self.now + delay, Event::Actor(to, event));
        }
    }

    /// Handles a frame that arrives at an end of a stream.
    pub(crate) fn on_frame(&mut self, number: u64, forth: bool, frame: Frame) {
        let Some(link) = self.jobs.links.list.get_mut(&number) else {
            return;
        };
        if link.is_broken {
            return;
        }
        let (opener, other, purpose) = (link.opener, link.other, link.purpose);
        if forth {
            self.arrive_at_worker(number, other, opener.0, frame);
        } else {
            if matches!(frame, Frame::Break) {
                link.is_broken = true;
            }
            self.arrive_at_opener(opener, purpose, frame);
        }
    }

    fn arrive_at_worker(&mut self, number: u64, to: (usize, u64), from: usize, frame: Frame) {
        let stream = StreamId(number);
        let peer = self.actors.list[from].account;
        let lives = self.actors.list[to.0].life == to.1;
        let Role::Worker(worker) = &mut self.actors.list[to.0].role else {
            return self.send_frame(number, false, Frame::Break);
        };
        if !lives || worker.core.is_none() {
            return self.send_frame(number, false, Frame::Break);
        }
        let is_known = worker.streams.contains(&stream);
        let event = match frame {
            Frame::Break if is_known => {
                worker.streams.remove(&stream);
                Some(provider::Event::StreamClosed { stream })
            }
            Frame::Break => None,
            Frame::Message(bytes) if !is_known => {
                let opening = decode_message::<Opening>(&bytes);
                opening.map(|opening| {
                    worker.streams.insert(stream);
                    let lease = match &opening {
                        Opening::Start(start) => Some(start.lease),
                        Opening::Resume(lease) => Some(*lease),
                        Opening::Offer(_) => None,
                    };
                    worker.spoken_of.extend(lease.map(|lease| (stream, lease)));
                    provider::Event::Opened {
                        stream,
                        peer,
                        opening,
                    }
                })
            }
            Frame::Message(bytes) => decode_message::<BuyerMessage>(&bytes)
                .map(|message| provider::Event::MessageReceived { stream, message }),
        };
        if let Some(event) = event {
            self.tell_worker(to.0, event);
        }
    }

    /// Records that a buyer sees a result of its provider.
    fn witness_result(&mut self, actor: usize, leg: Leg, message: &ProviderMessage) {
        if let Role::Buyer(buyer) = &mut self.actors.list[actor].role
            && let ProviderMessage::Made { request, .. } = message
        {
            buyer.witness.on_made(leg, *request, self.now);
        }
    }

    fn arrive_at_opener(&mut self, to: (usize, u64), purpose: Purpose, frame: Frame) {
        if self.actors.list[to.0].life != to.1 {
            return;
        }
        let is_worker = matches!(self.actors.list[to.0].role, Role::Worker(_));
        match (purpose, frame) {
            (Purpose::Offer(Ticket(u64::MAX)), _) => {}
            (Purpose::Leg(leg), Frame::Message(bytes)) => {
                if let Some(message) = decode_message::<ProviderMessage>(&bytes) {
                    self.witness_result(to.0, leg, &message);
                    self.tell_buyer(to.0, job::Event::MessageReceived { leg, message });
                }
            }
            (Purpose::Leg(leg), Frame::Break) => {
                let why = "the stream broke".to_owned();
                self.tell_buyer(to.0, job::Event::PeerLost { leg, why });
            }
            (Purpose::Offer(ticket), frame) => {
                let taken = match frame {
                    Frame::Message(bytes) => decode_message::<OfferAnswer>(&bytes),
                    Frame::Break => None,
                };
                let done = if is_worker {
                    EffectResult::Worker(provider::Answer::Offered(
                        taken.ok_or_else(|| "not reached".to_owned()),
                    ))
                } else {
                    EffectResult::Buyer(job::Answer::HandedOn(match taken {
                        Some(OfferAnswer::Yes) => Ok(()),
                        _ => Err("not taken".to_owned()),
                    }))
                };
                self.on_done(to.0, to.1, (ticket, done));
            }
        }
    }
}

fn link_opener(links: &Links, number: u64) -> usize {
    links.list[&number].opener.0
}

fn link_other(links: &Links, number: u64) -> usize {
    links.list[&number].other.0
}
