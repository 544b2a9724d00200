//! Simulates the streams of leases between buyers and providers. They keep the order of messages,
//! delay them by the distance of the two regions, and break when a process ends.

use souk_roles::job::{self, Leg};
use souk_roles::lease::{Opening, ProviderMessage};
use souk_roles::provider::{self, StreamId};

use super::{Crowd, CrowdEvent, LeaseFrame};
use crate::crowd::supply;

/// How long a buyer tries to reach a machine that does not answer, in microseconds; the core will
/// then buy elsewhere.
const DIAL_US: u64 = 10_000_000;

/// How a provider's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It withdrew its ask and its leases first.
    InOrder,
    /// Its system closed its streams.
    Killed,
    /// Nothing was sent: the machine lost its power or its network.
    Silent,
}

/// A stream between a job and a provider.
pub struct LeaseLink {
    pub job: u64,
    pub leg: Leg,
    buyer: usize,
    seller: usize,
    /// The life of the provider's process that the stream leads to.
    life: u32,
    is_open_for_buyer: bool,
}

impl Crowd {
    /// Opens a stream from a job's leg to a provider. Returns its number.
    pub fn open_link(&mut self, job: u64, leg: Leg, seller: usize, opening: Opening) -> u64 {
        let buyer = self.jobs[job].buyer;
        let life = self.machines[seller].life;
        let link = LeaseLink {
            job,
            leg,
            buyer,
            seller,
            life,
            is_open_for_buyer: true,
        };
        let number = self.links.add(link);
        self.send_to_provider(number, LeaseFrame::Opening(opening));
        number
    }

    pub fn send_to_provider(&mut self, number: u64, frame: LeaseFrame) {
        let Some(link) = self.links.get_mut(number) else {
            return;
        };
        if let LeaseFrame::BuyerGone = &frame {
            link.is_open_for_buyer = false;
        }
        self.counts.lease_messages += 1;
        let way = supply::way_us(
            self.machines[link.buyer].region,
            self.machines[link.seller].region,
        );
        self.add_event(self.now + way, CrowdEvent::Frame(number, Box::new(frame)));
    }

    pub fn send_to_buyer(&mut self, number: u64, frame: LeaseFrame) {
        let Some(link) = self.links.get(number) else {
            return;
        };
        self.counts.lease_messages += 1;
        let way = supply::way_us(
            self.machines[link.buyer].region,
            self.machines[link.seller].region,
        );
        let event = match frame {
            LeaseFrame::Provider(ProviderMessage::Alive) => CrowdEvent::Heartbeat(number),
            frame => CrowdEvent::Frame(number, Box::new(frame)),
        };
        self.add_event(self.now + way, event);
    }

    /// Breaks all streams of a provider whose process ends.
    pub fn break_links(&mut self, actor: usize, departure: Departure) {
        let streams = self.sellers[actor].streams.clone();
        if departure != Departure::Silent {
            for stream in streams {
                self.send_to_buyer(stream.0, LeaseFrame::ProviderGone);
            }
        }
    }

    /// Handles a frame that arrives at an end of a stream.
    pub fn on_frame(&mut self, number: u64, frame: LeaseFrame) {
        match frame {
            LeaseFrame::Provider(_) | LeaseFrame::ProviderGone => {
                self.on_frame_for_buyer(number, frame)
            }
            _ => self.on_frame_for_provider(number, frame),
        }
    }

    fn on_frame_for_buyer(&mut self, number: u64, frame: LeaseFrame) {
        let Some(link) = self.links.get(number) else {
            return;
        };
        let (job, leg, is_open) = (link.job, link.leg, link.is_open_for_buyer);
        match frame {
            LeaseFrame::Provider(message) if is_open => {
                self.tell_job(job, job::Event::MessageReceived { leg, message });
            }
            LeaseFrame::ProviderGone => {
                self.links.remove(number);
                if is_open {
                    let why = "the stream broke".to_owned();
                    self.tell_job(job, job::Event::PeerLost { leg, why });
                }
            }
            _ => {}
        }
    }

    fn on_frame_for_provider(&mut self, number: u64, frame: LeaseFrame) {
        let Some(link) = self.links.get(number) else {
            return;
        };
        let (seller, stream) = (link.seller, StreamId(number));
        let is_there =
            self.machines[seller].life == link.life && self.sellers[seller].core.is_some();
        let peer = self.machines[link.buyer].account;
        let is_closing = matches!(frame, LeaseFrame::BuyerGone);
        if !is_there {
            return self.on_frame_for_nobody(number, frame);
        }
        let event = match frame {
            LeaseFrame::Opening(opening) => {
                self.sellers[seller].streams.insert(stream);
                provider::Event::Opened {
                    stream,
                    peer,
                    opening,
                }
            }
            _ if !self.sellers[seller].streams.contains(&stream) => {
                if is_closing {
                    self.links.remove(number);
                }
                return;
            }
            LeaseFrame::Buyer(message) => provider::Event::MessageReceived { stream, message },
            _ => {
                self.sellers[seller].streams.remove(&stream);
                self.links.remove(number);
                provider::Event::StreamClosed { stream }
            }
        };
        self.tell_provider(seller, event);
    }

    /// Handles a frame for a process that has ended.
    fn on_frame_for_nobody(&mut self, number: u64, frame: LeaseFrame) {
        let seller = self.links[number].seller;
        let is_silent = self.sellers[seller].core.is_none()
            && self.sellers[seller].departure == Departure::Silent;
        match frame {
            LeaseFrame::BuyerGone => {
                self.links.remove(number);
            }
            LeaseFrame::Opening(_) => {
                self.counts.ghosts_met += 1;
                let after = if is_silent { DIAL_US } else { 0 };
                let gone = CrowdEvent::Frame(number, Box::new(LeaseFrame::ProviderGone));
                self.add_event(self.now + after, gone);
            }
            _ if is_silent => {}
            _ => self.send_to_buyer(number, LeaseFrame::ProviderGone),
        }
    }
}
