//! The leases of the naive exchange: usage notes, ends, settlement and resale.

use super::*;

impl Naive {
    pub fn rent(&self, id: u64) -> &Rent {
        &self.rents[id as usize - 1]
    }

    pub fn rent_mut(&mut self, id: u64) -> &mut Rent {
        &mut self.rents[id as usize - 1]
    }

    fn open_rent(&self, id: LeaseId) -> Result<Rent, Refusal> {
        let rent = self.rents.iter().find(|rent| rent.id == id.0);
        let rent = rent.ok_or(Refusal::LeaseUnknown { lease: id })?;
        match rent.state {
            LeaseState::Closed { at, paid, .. } => Err(Refusal::LeaseClosed {
                lease: id,
                closed_at: at,
                paid,
            }),
            _ => Ok(rent.clone()),
        }
    }

    fn not_ended(&self, id: LeaseId) -> Result<Rent, Refusal> {
        let rent = self.open_rent(id)?;
        match rent.state {
            LeaseState::Due { ended, .. } => Err(Refusal::LeaseEnded {
                lease: id,
                at: ended,
            }),
            _ => Ok(rent),
        }
    }

    pub fn active(&self, id: LeaseId) -> Result<Rent, Refusal> {
        let rent = self.open_rent(id)?;
        match rent.state {
            LeaseState::Active => Ok(rent),
            _ => Err(Refusal::LeaseEnded {
                lease: id,
                at: Millis(rent.ends()),
            }),
        }
    }

    pub fn must_buy(&self, who: usize, rent: &Rent) -> Result<(), Refusal> {
        if rent.buyer != who {
            let (lease, buyer) = (LeaseId(rent.id), self.purses[rent.buyer].key);
            return Err(Refusal::BuyerOnly { lease, buyer });
        }
        Ok(())
    }

    fn must_provide(&self, who: usize, rent: &Rent) -> Result<(), Refusal> {
        if rent.provider != who {
            let (lease, provider) = (LeaseId(rent.id), self.purses[rent.provider].key);
            return Err(Refusal::ProviderOnly { lease, provider });
        }
        Ok(())
    }

    fn parties(&self, id: u64) -> (LeaseId, AccountKey, AccountKey) {
        let rent = self.rent(id);
        (
            LeaseId(id),
            self.purses[rent.buyer].key,
            self.purses[rent.provider].key,
        )
    }

    fn tell_note(&mut self, id: u64, usage: u64, state: NoteState) {
        let (lease, buyer, provider) = self.parties(id);
        let usage = DeviceMicros(usage);
        self.events.push(Event::Note {
            lease,
            buyer,
            provider,
            usage,
            state,
        });
    }

    pub fn start_work(&mut self, who: usize, id: LeaseId) -> Done {
        let rent = self.open_rent(id)?;
        self.must_buy(who, &rent)?;
        if let LeaseState::Waiting { until, .. } = rent.state {
            return Err(Refusal::LeaseWaits { lease: id, until });
        }
        self.rent_mut(id.0).started = true;
        self.rent_mut(id.0).reserved = None;
        if !rent.started {
            let (lease, buyer, provider) = self.parties(id.0);
            self.events.push(Event::WorkStarted {
                lease,
                buyer,
                provider,
            });
        }
        Ok(Acceptance::Started)
    }

    pub fn state_ready(&mut self, who: usize, id: LeaseId) -> Done {
        let rent = self.open_rent(id)?;
        self.must_provide(who, &rent)?;
        if let LeaseState::Waiting { until, .. } = rent.state {
            return Err(Refusal::LeaseWaits { lease: id, until });
        }
        if let LeaseState::Due { until, reason, .. } = rent.state {
            self.rent_mut(id.0).claimed = true;
            return Ok(match rent.note {
                Some(_) => Acceptance::Ready { until },
                None => self.close_accepted(id.0, reason),
            });
        }
        let at = (self.now + self.rules.reserve_wait.0).min(rent.ends());
        let until = Millis(rent.reserved.unwrap_or(at));
        self.rent_mut(id.0).reserved = Some(until.0);
        if rent.reserved.is_none() {
            let (lease, buyer, provider) = self.parties(id.0);
            self.events.push(Event::ProviderReady {
                lease,
                buyer,
                provider,
                until,
            });
        }
        Ok(Acceptance::Ready { until })
    }

    /// Nobody says that there is work.
    pub fn end_unused(&mut self, id: u64) {
        self.rent_mut(id).claimed = true;
        match self.rent(id).started || self.rent(id).note.is_some() {
            true => self.end(id, CloseReason::Unused),
            false => {
                self.close_accepted(id, CloseReason::Unused);
            }
        }
    }

    pub fn note(&mut self, who: usize, id: LeaseId, usage: u64) -> Done {
        let rent = self.open_rent(id)?;
        self.must_provide(who, &rent)?;
        let elapsed = self.now.min(rent.ends()).saturating_sub(rent.start);
        let units = u64::from(rent.quantity);
        let step = match rent.started {
            true => rent.agreed + self.rules.note_span.0 * 1_000 * units,
            false => self.rules.note_unstarted.0 * 1_000 * units,
        };
        let possible = DeviceMicros((elapsed * 1_000 * units).min(step));
        if !rent.started && rent.accepted >= possible.0 {
            return Err(Refusal::WorkUnstarted { lease: id });
        }
        if let Some((_, at)) = rent.note {
            return Err(Refusal::NoteOpen {
                lease: id,
                accepted_at: Millis(at),
            });
        }
        let claimed = DeviceMicros(usage);
        if usage <= rent.accepted {
            let accepted = DeviceMicros(rent.accepted);
            return Err(Refusal::UsageStale { claimed, accepted });
        }
        if claimed > possible {
            return Err(Refusal::UsageOver { claimed, possible });
        }
        if let LeaseState::Due { ended, .. } = rent.state
            && self.now >= ended.0 + self.rules.settle_grace.0
        {
            return Err(Refusal::LeaseEnded {
                lease: id,
                at: ended,
            });
        }
        let at = self.now + self.rules.note_deadline.0;
        let rent = self.rent_mut(id.0);
        if let LeaseState::Due { reason, .. } = rent.state {
            rent.claimed = true;
            if reason == CloseReason::Disputed {
                rent.refused = usage;
                return Ok(self.close_accepted(id.0, reason));
            }
        }
        let rent = self.rent_mut(id.0);
        rent.note = Some((usage, at));
        if let LeaseState::Due { until, .. } = &mut rent.state {
            *until = Millis(until.0.max(at));
        }
        self.tell_note(id.0, usage, NoteState::Open(Millis(at)));
        Ok(Acceptance::Noted {
            accepted_at: Millis(at),
        })
    }

    pub fn accept(&mut self, who: usize, id: LeaseId, usage: u64) -> Done {
        let rent = self.open_rent(id)?;
        self.must_buy(who, &rent)?;
        let (noted, _) = rent.note.ok_or(Refusal::NoteNone { lease: id })?;
        if noted != usage {
            let (noted, accepted) = (DeviceMicros(noted), DeviceMicros(usage));
            return Err(Refusal::NoteDiffers { noted, accepted });
        }
        let rent = self.rent_mut(id.0);
        (rent.note, rent.accepted, rent.agreed, rent.silent) = (None, usage, usage, 0);
        self.tell_note(id.0, usage, NoteState::Accepted);
        Ok(Acceptance::NoteAccepted)
    }

    pub fn accept_silently(&mut self, id: u64) {
        let rent = self.rent_mut(id);
        let (usage, _) = rent.note.take().unwrap();
        rent.accepted = usage;
        rent.silent += 1;
        let (silent, running) = (rent.silent, rent.running());
        self.tell_note(id, usage, NoteState::Silent);
        if running && silent >= self.rules.silent_notes_max {
            self.end(id, CloseReason::BuyerSilent);
        }
    }

    pub fn dispute(&mut self, who: usize, id: LeaseId) -> Done {
        let rent = self.open_rent(id)?;
        self.must_buy(who, &rent)?;
        let disputed = CloseReason::Disputed;
        match rent.state {
            LeaseState::Due { ended, reason, .. } if reason == disputed => {
                return Ok(Acceptance::Ending { at: ended });
            }
            _ => {}
        }
        if let Some((usage, _)) = rent.note {
            let rent = self.rent_mut(id.0);
            (rent.claimed, rent.refused) = (true, usage);
            return Ok(self.close_accepted(id.0, disputed));
        }
        match rent.state {
            LeaseState::Waiting { .. } => return Ok(self.close_accepted(id.0, disputed)),
            LeaseState::Due { ended, until, .. } => {
                let reason = disputed;
                self.rent_mut(id.0).state = LeaseState::Due {
                    ended,
                    until,
                    reason,
                };
                return Ok(Acceptance::Ending { at: ended });
            }
            _ => self.end(id.0, disputed),
        }
        let at = Millis(self.now);
        Ok(Acceptance::Ending { at })
    }

    pub fn end_early(&mut self, who: usize, id: LeaseId) -> Done {
        let rent = self.not_ended(id)?;
        self.must_buy(who, &rent)?;
        if let LeaseState::Waiting { .. } = rent.state {
            return Ok(self.close_accepted(id.0, CloseReason::BuyerEnded));
        }
        self.end(id.0, CloseReason::BuyerEnded);
        Ok(Acceptance::Ending {
            at: Millis(self.now),
        })
    }

    pub fn give_up(&mut self, who: usize, id: LeaseId) -> Done {
        let rent = self.not_ended(id)?;
        self.must_provide(who, &rent)?;
        let [stated, slow] = self.purses[who]
            .dealings
            .get(&rent.buyer)
            .copied()
            .unwrap_or_default();
        let steps = self.steps(stated + slow);
        let score = &mut self.purses[who].score;
        *score -= (u64::from(score.div_ceil(4)) * steps / 4) as u16;
        Ok(self.close_accepted(id.0, CloseReason::GaveUp))
    }

    pub fn reclaim(&mut self, who: usize, id: LeaseId) -> Done {
        let rent = self.not_ended(id)?;
        self.must_provide(who, &rent)?;
        if rent.term == Term::Firm {
            return Err(Refusal::LeaseFirm {
                lease: id,
                deadline: Millis(rent.deadline),
            });
        }
        if rent.state != LeaseState::Active {
            return Err(Refusal::LeaseEnded {
                lease: id,
                at: Millis(rent.ends()),
            });
        }
        let at = (self.now + rent.notice).min(rent.deadline);
        self.give_notice(id.0, at, CloseReason::Reclaimed);
        Ok(Acceptance::Ending { at: Millis(at) })
    }

    pub fn give_notice(&mut self, id: u64, at: u64, reason: CloseReason) {
        self.drop_resale(id);
        let at = Millis(at);
        self.rent_mut(id).state = LeaseState::Ending { at, reason };
        let (lease, buyer, provider) = self.parties(id);
        self.events.push(Event::LeaseEnding {
            lease,
            buyer,
            provider,
            at,
            reason,
        });
    }

    fn drop_resale(&mut self, id: u64) {
        if let Some(ask) = self.resale_ask(id) {
            self.drop_order(ask, OrderEnd::Cancelled);
        }
    }

    pub fn end_by_time(&mut self, id: u64) {
        let reason = match self.rent(id).state {
            LeaseState::Ending { reason, .. } => reason,
            _ => CloseReason::Deadline,
        };
        self.end(id, reason);
    }

    /// The device goes to whoever waits for it.
    fn free(&mut self, id: u64) {
        self.drop_resale(id);
        let (now, next) = (self.now, self.rent(id).successor);
        let Some(next) = next else { return };
        let rent = self.rent_mut(next);
        if let LeaseState::Waiting { .. } = rent.state {
            rent.deadline = now + (rent.deadline - rent.start);
            rent.start = now;
            rent.state = LeaseState::Active;
            let deadline = Millis(rent.deadline);
            let (lease, buyer, provider) = self.parties(next);
            self.events.push(Event::LeaseStarted {
                lease,
                buyer,
                provider,
                deadline,
            });
        }
    }

    pub fn end(&mut self, id: u64, reason: CloseReason) {
        self.free(id);
        let ended = self.now;
        let noted = self.rent(id).note.map_or(0, |(_, at)| at);
        let until = Millis((ended + self.rules.settle_grace.0).max(noted));
        self.rent_mut(id).state = LeaseState::Due {
            ended: Millis(ended),
            until,
            reason,
        };
        let (lease, buyer, provider) = self.parties(id);
        self.events.push(Event::LeaseEnded {
            lease,
            buyer,
            provider,
            until,
            reason,
        });
    }

    pub fn close_by_time(&mut self, id: u64) {
        let LeaseState::Due { reason, .. } = self.rent(id).state else {
            unreachable!()
        };
        self.close_accepted(id, reason);
    }

    fn close_accepted(&mut self, id: u64, reason: CloseReason) -> Acceptance {
        let rent = self.rent(id).clone();
        let held = self.now.min(rent.ends()).saturating_sub(rent.start);
        let held = held * 1_000 * u64::from(rent.quantity);
        let idle = match rent.claimed {
            true => held.saturating_sub(rent.agreed),
            false => 0,
        };
        let idle = ceil(u128::from(idle) * u128::from(rent.idle), 1_000);
        let owed = rent.accepted.max(rent.agreed + idle);
        let by_buyer = matches!(reason, CloseReason::Disputed | CloseReason::BuyerEnded);
        let usage = if by_buyer { rent.accepted } else { owed };
        let amount = due(rent.price, usage).min(rent.escrow);
        let lost = due(rent.price, owed.max(rent.refused)).min(rent.escrow);
        let forfeit = lost.saturating_sub(amount);
        self.close(id, reason, (amount, usage, forfeit))
    }

    /// The forfeit is the market's.
    fn close(
        &mut self,
        id: u64,
        reason: CloseReason,
        (amount, usage, forfeit): (u64, u64, u64),
    ) -> Acceptance {
        self.rent_mut(id).note = None;
        match self.rent(id).state {
            LeaseState::Waiting { behind, .. } => self.rent_mut(behind.0).successor = None,
            LeaseState::Active | LeaseState::Ending { .. } => self.free(id),
            _ => {}
        }
        let rent = self.rent(id).clone();
        let refunded = rent.escrow - amount - forfeit;
        let (paid, fee) = match rent.resale {
            None => {
                let fee = self.pay(rent.buyer, rent.provider, amount);
                (amount - fee, fee)
            }
            Some((seller, provider_price, subsidy)) => {
                let owed = due(provider_price, usage);
                let by_buyer = owed.min(amount);
                let by_seller = (owed - by_buyer).min(subsidy);
                let first = self.pay(rent.buyer, rent.provider, by_buyer);
                let second = self.pay(seller, rent.provider, by_seller);
                let third = self.pay(rent.buyer, seller, amount - by_buyer);
                self.release(seller, subsidy - by_seller);
                (
                    by_buyer + by_seller - first - second,
                    first + second + third,
                )
            }
        };
        self.release(rent.buyer, refunded);
        self.purses[rent.buyer].escrow -= forfeit;
        self.fees += forfeit;
        let fee = fee + forfeit;
        self.purses[rent.provider].last_closed = self.now;
        let (at, paid, fee) = (Millis(self.now), Credits(paid), Credits(fee));
        let refunded = Credits(refunded);
        let rent = self.rent_mut(id);
        (rent.escrow, rent.cost) = (0, amount + forfeit);
        rent.resale = rent.resale.map(|(seller, price, _)| (seller, price, 0));
        rent.state = LeaseState::Closed {
            at,
            reason,
            paid,
            fee,
            refunded,
        };
        let (lease, buyer, provider) = self.parties(id);
        self.events.push(Event::LeaseClosed {
            lease,
            buyer,
            provider,
            reason,
            paid,
            fee,
            refunded,
        });
        Acceptance::Closed {
            paid,
            fee,
            refunded,
        }
    }

    pub fn settle(&mut self, receipt: &Receipt) -> Done {
        let body = &receipt.body;
        if let Err(fault) = receipt.verify() {
            return Err(Refusal::ReceiptBad {
                fault: Box::new(fault),
            });
        }
        if body.market != self.market {
            let receipt = body.market;
            return Err(Refusal::ReceiptMarket {
                market: self.market,
                receipt,
            });
        }
        let rent = self.open_rent(body.lease)?;
        let (lease, buyer, provider) = self.parties(rent.id);
        if (body.buyer, body.provider) != (buyer, provider) {
            return Err(Refusal::ReceiptParties {
                lease,
                buyer,
                provider,
            });
        }
        let resources = &rent.terms.resources;
        let terms = (rent.job, resources.class(), &resources.model);
        let is_same = (body.job, body.class, &body.model) == terms;
        if !is_same || u64::from(body.idle_part.0) != rent.idle {
            return Err(Refusal::ReceiptTerms { lease });
        }
        if body.price.0 != rent.price {
            let (lease_price, receipt_price) = (Price(rent.price), body.price);
            return Err(Refusal::ReceiptPrice {
                lease_price,
                receipt_price,
            });
        }
        let span = (rent.deadline - rent.start) * 1_000 * u64::from(rent.quantity);
        let claimed = DeviceMicros(body.usage.0.saturating_add(body.idle.0));
        if claimed.0 > span {
            let possible = DeviceMicros(span);
            return Err(Refusal::UsageOver { claimed, possible });
        }
        if body.amount.0 > rent.escrow {
            let (claimed, escrow) = (body.amount, Credits(rent.escrow));
            return Err(Refusal::ReceiptOver { claimed, escrow });
        }
        let slow = body.delivered_mega_ops * 10 < body.declared_mega_ops * 8;
        let slow = slow && body.delivered_mega_ops != 0;
        self.judge(rent.provider, rent.buyer, slow, body.amount.0);
        self.judge(rent.buyer, rent.provider, false, body.amount.0);
        let idle = ceil(u128::from(body.idle.0) * u128::from(rent.idle), 1_000);
        let payment = (body.amount.0, body.usage.0 + idle, 0);
        Ok(self.close(rent.id, CloseReason::Receipt, payment))
    }

    pub fn extend(&mut self, who: usize, id: LeaseId, by: u64) -> Done {
        let rent = self.active(id)?;
        self.must_buy(who, &rent)?;
        if self.resale_ask(id.0).is_some() {
            return Err(Refusal::LeaseResold { lease: id });
        }
        let duration = (rent.deadline - rent.start).saturating_add(by);
        let limit = rent.terms.duration_max;
        if by == 0 || duration > limit.0 {
            let duration = Millis(duration);
            return Err(Refusal::LeaseLong {
                lease: id,
                duration,
                limit,
            });
        }
        let escrow = cost(rent.price, rent.quantity, duration);
        self.need(who, escrow.saturating_sub(rent.escrow))?;
        if rent.resale.is_some_and(|(_, price, _)| price > rent.price) {
            return Err(Refusal::LeaseResold { lease: id });
        }
        self.hold(who, escrow.saturating_sub(rent.escrow));
        let rent = self.rent_mut(id.0);
        rent.escrow = rent.escrow.max(escrow);
        rent.deadline = rent.start + duration;
        let deadline = Millis(rent.deadline);
        let (lease, buyer, provider) = self.parties(id.0);
        self.events.push(Event::LeaseExtended {
            lease,
            buyer,
            provider,
            deadline,
        });
        Ok(Acceptance::Extended {
            deadline,
            escrow: Credits(escrow),
        })
    }

    pub fn hand_over(&mut self, from: u64, to: u64) {
        let new = self.rent(to).clone();
        let old = self.rent_mut(from);
        let loss = old.price.saturating_sub(new.price);
        let micros = (new.deadline - new.start) * 1_000 * u64::from(new.quantity);
        let subsidy = u128::from(loss) * u128::from(micros) / 1_000_000;
        let subsidy = u64::try_from(subsidy).unwrap().min(old.escrow);
        old.escrow -= subsidy;
        let resale = (old.buyer, old.price, subsidy);
        old.successor = Some(to);
        self.rent_mut(to).resale = Some(resale);
        self.end(from, CloseReason::Resold);
    }

    pub fn prove(&mut self, pair: &[Receipt; 2]) -> Done {
        for receipt in pair {
            if let Err(fault) = receipt.verify_provider() {
                return Err(Refusal::ReceiptBad {
                    fault: Box::new(fault),
                });
            }
        }
        let (one, other) = (&pair[0].body, &pair[1].body);
        let lease = one.lease;
        let rent = self.rents.iter().find(|rent| rent.id == lease.0);
        let rent = rent.ok_or(Refusal::LeaseUnknown { lease })?.clone();
        if rent.faulted {
            return Err(Refusal::FaultKnown { lease });
        }
        let provider = self.purses[rent.provider].key;
        let here = |body: &ReceiptBody| {
            (body.market, body.lease, body.provider) == (self.market, lease, provider)
        };
        let same_work = one.graph == other.graph && one.inputs == other.inputs;
        if !here(one) || !here(other) || !same_work || one.outputs == other.outputs {
            return Err(Refusal::FaultNone { lease });
        }
        let stake = u128::from(self.purses[rent.provider].stake);
        let slashed = ceil(stake * u128::from(self.rules.slash.0), 1_000);
        let cost = if rent.closed() {
            rent.cost
        } else {
            rent.escrow
        };
        let compensated = (slashed / 2).min(cost);
        self.purses[rent.provider].stake -= slashed;
        self.purses[rent.provider].score = 0;
        self.purses[rent.buyer].available += compensated;
        self.fees += slashed - compensated;
        self.rent_mut(lease.0).faulted = true;
        let (lease, buyer, provider) = self.parties(lease.0);
        let (slashed, compensated) = (Credits(slashed), Credits(compensated));
        self.events.push(Event::Slashed {
            lease,
            buyer,
            provider,
            slashed,
            compensated,
        });
        Ok(Acceptance::Slashed {
            slashed,
            compensated,
        })
    }
}
