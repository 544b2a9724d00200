//! Fetches the contents of a lease: graphs and weights part by part, and the inputs of each
//! request. A lease that brings more bytes than the provider's limit ends.

use super::*;

impl LeaseCore {
    pub(super) fn content_holders(&self, first: AccountKey) -> Vec<AccountKey> {
        let others = self.start.peers.iter().map(|contact| contact.account);
        let others = others.filter(|account| *account != first);
        std::iter::once(first).chain(others).collect()
    }

    /// Fetches the inputs of a request: those that other providers offered, and those of the buyer,
    /// except for the first request, whose inputs come with the contents of its part.
    pub(super) fn bring_inputs(&mut self, shared: &mut SharedState, number: u32) {
        let open = &self.requests.open[&number];
        let is_first = number == self.start.first.number;
        let given = open.given.iter().filter(|_| !is_first);
        let given = given.map(|(name, id)| (name.clone(), *id, self.lease.buyer));
        let offered = self.requests.request_offers(number);
        let wanted: Vec<_> = given.chain(offered).collect();
        for (name, id, holder) in wanted {
            self.bring_input(shared, number, &name, id, holder);
        }
    }

    /// Fetches one input of a request.
    pub(super) fn bring_input(
        &mut self,
        shared: &mut SharedState,
        number: u32,
        name: &str,
        id: ContentId,
        holder: AccountKey,
    ) {
        let holders = self.content_holders(holder);
        let awaited = self.awaited;
        let open = self.requests.open.get_mut(&number);
        let open = open.expect("it comes for a request that is open");
        open.coming.insert(name.to_owned(), id);
        open.pins.push(id);
        let is_of = |part: &u32| {
            let part = &self.start.parts[*part as usize];
            part.inputs.iter().any(|input| input.name == name)
        };
        let awaited = awaited.filter(|(request, _)| *request == number);
        let urgency = match awaited.map(|(_, part)| part).filter(is_of) {
            Some(_) => Urgency::Awaited,
            None => Urgency::Planned,
        };
        let wait = Wait::LeaseResult(
            self.lease.id,
            LeaseEffect::Input(number, name.to_owned(), id),
        );
        let content = Content {
            id,
            what: name.to_owned(),
            kind: ContentKind::Tensor,
        };
        let action = Action::Bring {
            lease: self.lease.id,
            request: Some(number),
            contents: vec![content],
            holders,
            urgency,
        };
        shared.request_effect(wait, action);
    }

    /// Fetches the contents of the next part, and all graphs with those of the first.
    pub(super) fn bring_contents(&mut self, shared: &mut SharedState, urgency: Urgency) {
        while (self.here as usize) < self.start.parts.len() {
            let contents = self.part_contents(self.here);
            if contents.is_empty() {
                self.here += 1;
                continue;
            }
            let ids = contents.iter().map(|content| content.id);
            self.pins.extend(ids);
            let wait = Wait::LeaseResult(
                self.id(),
                LeaseEffect::Contents(self.here, contents.clone()),
            );
            let action = Action::Bring {
                lease: self.id(),
                request: None,
                contents,
                holders: self.content_holders(self.buyer()),
                urgency,
            };
            return shared.request_effect(wait, action);
        }
    }

    /// Returns the contents of a part: its weights, and its inputs for the first request. Those of
    /// the first part include all graphs.
    pub(super) fn part_contents(&self, index: u32) -> Vec<Content> {
        let content = |id: ContentId, what: &str, kind| Content {
            id,
            what: what.to_owned(),
            kind,
        };
        let part = &self.start.parts[index as usize];
        let graphs = self.start.parts.iter().filter(|_| index == 0);
        let graphs = graphs.map(|part| content(part.graph, "graph", ContentKind::Graph));
        let weights = part.weights.iter();
        let weights = weights.map(|id| content(*id, "weights", ContentKind::Weights));
        let first = self.requests.open.get(&self.start.first.number);
        let inputs = part.inputs.iter().filter_map(|input| {
            let first = first?;
            let id = first.given.get(&input.name)?;
            let is_here = first.values.contains_key(&input.name);
            (!is_here).then(|| content(*id, &input.name, ContentKind::Tensor))
        });
        graphs.chain(weights).chain(inputs).collect()
    }

    pub(super) fn on_contents(
        &mut self,
        shared: &mut SharedState,
        index: u32,
        contents: &[Content],
        arrivals: &[Arrival],
    ) -> Option<End> {
        assert_eq!(index, self.here, "contents come part by part");
        assert_eq!(contents.len(), arrivals.len(), "all of them came");
        for (content, arrival) in contents.iter().zip(arrivals) {
            assert_eq!(content.id, arrival.id, "in their order");
            let is_tensor = content.kind == ContentKind::Tensor;
            self.bill.add_arrival(arrival, is_tensor);
            self.bytes = self.bytes.saturating_add(arrival.bytes);
            let first = self.requests.open.get_mut(&self.start.first.number);
            if let Some(first) = first.filter(|_| is_tensor) {
                first.values.insert(content.what.clone(), content.id);
            }
        }
        self.here += 1;
        if let Some(end) = self.check_memory(shared) {
            return Some(end);
        }
        if self.stage == WorkStage::Fetching {
            shared.send_message(self.stream, fetch_summary(arrivals));
            self.find_place(shared);
        }
        self.bring_contents(shared, Urgency::Planned);
        self.pump_runs(shared)
    }

    pub(super) fn on_input(
        &mut self,
        shared: &mut SharedState,
        (number, name, id): (u32, String, ContentId),
        came: Result<Arrival, Failure>,
    ) -> Option<End> {
        if let Ok(arrival) = &came {
            assert_eq!(arrival.id, id, "what came is what was asked for");
            self.bill.add_arrival(arrival, true);
        }
        let open = self.requests.open.get_mut(&number)?;
        open.coming.remove(&name);
        match came {
            Ok(arrival) => {
                open.bytes = open.bytes.saturating_add(arrival.bytes);
                open.values.insert(name, id);
                if let Some(end) = self.check_memory(shared) {
                    return Some(end);
                }
            }
            Err(failure) => drop(open.failed.insert(name, failure)),
        }
        self.pump_runs(shared)
    }

    pub(super) fn check_memory(&self, shared: &SharedState) -> Option<End> {
        let bytes = self.bytes.saturating_add(self.requests.fetched_bytes());
        let allowed = shared.config.memory_bytes_max;
        (bytes > allowed).then(|| {
            End::Failed(Failure::Limit(format!(
                "graphs, weights and inputs have {bytes} bytes: limits.memory_mib allows a job \
                 {allowed}"
            )))
        })
    }
}
