//! Checks a receipt against the purchase, the inputs given and the outputs made.

use std::collections::BTreeSet;

use souk_market::{
    AccountKey, DeviceMicros, Features, JobId, Listing, MarketId, Millis, Receipt, ReceiptBody,
};
use souk_memory::ContentId;

use super::facts::Terms;
use super::reason::{Objection, Speed, Term};
use crate::clock::Micros;
use crate::lease::{Start, TELLING_RUN, USAGE_MIN, transcript};

/// The purchase that a receipt must match.
pub(super) struct Purchase<'a> {
    /// The market of the purchase.
    pub market: MarketId,
    /// The account that bought.
    pub buyer: AccountKey,
    /// The id that the lease was bought under.
    pub job: JobId,
    /// The terms of the lease.
    pub terms: &'a Terms,
    /// The ask in the plan; the market can have sold another of its class at that price.
    pub listing: &'a Listing,
    /// The latest moment of its end.
    pub ends: Millis,
    /// The most device time possible, by the buyer's observations.
    pub payable: Micros,
    /// The most device time possible with that in which the provider waited for requests.
    pub holdable: Micros,
    /// The most time of a run without outputs because its inputs are at fault.
    pub failed_run: Micros,
    /// The work sent to its provider.
    pub start: &'a Start,
    /// The most parts that any request reached, by the provider's messages.
    pub parts: usize,
    /// The tensors that the provider can have used.
    pub known_inputs: BTreeSet<ContentId>,
    /// The most further tensors that it can have used without a report: only the consumer knows the
    /// tensors that a failed provider gave it.
    pub unreported_inputs: usize,
    /// The tensors that the provider reported as made.
    pub reported_outputs: BTreeSet<ContentId>,
    /// The tensors that it serves after its end.
    pub served: BTreeSet<ContentId>,
}

impl Purchase<'_> {
    /// Checks whether the buyer can sign the receipt.
    ///
    /// # Errors
    /// Returns the first objection.
    pub(super) fn check_receipt(&self, receipt: &Receipt) -> Result<(), Objection> {
        receipt.verify_provider()?;
        let (body, listing) = (&receipt.body, self.listing);
        let is_other_ask = self.terms.ask != listing.order;
        let terms = [
            (Term::Market, body.market == self.market),
            (Term::Lease, body.lease == self.terms.lease),
            (Term::Job, body.job == self.job),
            (Term::Buyer, body.buyer == self.buyer),
            (Term::Provider, body.provider == self.terms.provider),
            (Term::Price, body.price == self.terms.price),
            (Term::Class, body.class == listing.class),
            (
                Term::Model,
                is_other_ask || body.model == listing.resources.model,
            ),
            (
                Term::IdlePart,
                is_other_ask || body.idle_part == listing.idle,
            ),
            (Term::Graph, self.is_graph(body)),
            (Term::Tokens, body.metered.is_none()),
        ];
        if let Some((what, _)) = terms.into_iter().find(|(_, holds)| !holds) {
            return Err(Objection::Terms(what));
        }
        let span = self.ends.saturating_since(self.terms.start);
        let possible = DeviceMicros::from_units(self.terms.quantity, span);
        let possible = possible.min(DeviceMicros(self.payable.0));
        check_usage(body, possible, DeviceMicros(self.failed_run.0))?;
        check_idle(body, self.start.last, DeviceMicros(self.holdable.0))?;
        check_speed(body, self.start)?;
        if self.start.sequences > 0 {
            return check_transcript(body, &self.reported_outputs, &self.served);
        }
        let strange =
            |id: &&souk_market::ContentId| !self.known_inputs.contains(&to_content_id(id));
        if let Some(unknown) = body
            .inputs
            .iter()
            .filter(strange)
            .nth(self.unreported_inputs)
        {
            return Err(Objection::Input(*unknown));
        }
        let is_exact = listing.resources.features.has_all(Features::EXACT_1);
        let has_inputs = self.start.parts.iter().any(|part| !part.inputs.is_empty());
        let has_worked = !self.reported_outputs.is_empty();
        if is_exact && has_inputs && has_worked && body.inputs.is_empty() {
            return Err(Objection::NoInput);
        }
        let named: BTreeSet<ContentId> = body.outputs.iter().map(to_content_id).collect();
        let is_served =
            |id: &ContentId| self.reported_outputs.contains(id) || self.served.contains(id);
        match self.reported_outputs.is_subset(&named) && named.iter().all(is_served) {
            true => Ok(()),
            false => Err(Objection::Outputs),
        }
    }

    /// Returns whether the receipt names the graph of the most parts that any request reached.
    fn is_graph(&self, body: &ReceiptBody) -> bool {
        let mut runs = self.parts.max(1)..=self.start.parts.len();
        runs.any(|parts| self.start.graph_of(parts).as_bytes() == &body.graph.0)
    }
}

/// Checks that the receipt of a session names all tensors made and no others.
fn check_transcript(
    body: &ReceiptBody,
    reported_outputs: &BTreeSet<ContentId>,
    served: &BTreeSet<ContentId>,
) -> Result<(), Objection> {
    if let Some(unknown) = body.inputs.first() {
        return Err(Objection::Input(*unknown));
    }
    let named = body.outputs.iter().map(to_content_id);
    match reported_outputs.is_subset(served) && named.eq(transcript(served)) {
        true => Ok(()),
        false => Err(Objection::Outputs),
    }
}

/// Checks that a receipt bills no more time than was possible, and no time without outputs.
fn check_usage(
    body: &ReceiptBody,
    possible: DeviceMicros,
    failed_run: DeviceMicros,
) -> Result<(), Objection> {
    let billed = body.usage;
    if billed > possible {
        return Err(Objection::Usage { billed, possible });
    }
    if body.outputs.is_empty() && billed > USAGE_MIN.max(failed_run) {
        return Err(Objection::Nothing { billed });
    }
    Ok(())
}

/// Checks that a receipt bills idle time only where requests could follow the first, and, used or
/// idle, no more than the time in which the provider had requests or waited for one.
fn check_idle(body: &ReceiptBody, is_last: bool, held: DeviceMicros) -> Result<(), Objection> {
    let billed = DeviceMicros(body.usage.0.saturating_add(body.idle.0));
    let possible = if is_last { body.usage } else { held };
    match body.idle.0 > 0 && billed > possible {
        true => Err(Objection::Usage { billed, possible }),
        false => Ok(()),
    }
}

/// Checks that a receipt states the speed that follows from its usage and the plan. A provider that
/// delivers less than it advertised loses reputation by that figure, and so must not choose it.
fn check_speed(body: &ReceiptBody, start: &Start) -> Result<(), Objection> {
    let known = start.parts.iter().all(|part| part.flops > 0);
    if body.usage.0 < TELLING_RUN.0 || !known {
        return Ok(());
    }
    let each: usize = start.parts.iter().map(|part| part.outputs.len()).sum();
    let (each, outputs) = (each.max(1) as u128, body.outputs.len() as u128);
    let (passes, rest) = (outputs / each, outputs % each);
    let flops: u128 = start.parts.iter().map(|part| u128::from(part.flops)).sum();
    // Operations per microsecond equal mega-operations per second.
    let most = flops * (passes + u128::from(rest > 0)) / u128::from(body.usage.0);
    let delivered = u128::from(body.delivered_mega_ops);
    let wrong = |what, said, true_one: u128| {
        let true_one = u64::try_from(true_one).unwrap_or(u64::MAX);
        Err(Objection::Speed {
            what,
            said,
            true_one,
        })
    };
    if delivered > most + 1 || (delivered == 0 && most >= 2 && passes > 0) {
        return wrong(Speed::Delivered, body.delivered_mega_ops, most);
    }
    let planned: u128 = start.parts.iter().map(|p| u128::from(p.expected.0)).sum();
    // The provider's own count for its parts may be a tenth off the plan's.
    let said = u128::from(body.declared_mega_ops) + 1;
    let is_humble = |flops: u128, micros: u128| said * 10 * micros.max(1) < flops * 9;
    let humble = match rest {
        0 => is_humble(flops, planned),
        _ => {
            let mut parts = start.parts.iter();
            parts.all(|part| is_humble(part.flops.into(), part.expected.0.into()))
        }
    };
    if delivered > 0 && humble {
        let least = flops / planned.max(1);
        return wrong(Speed::Declared, body.declared_mega_ops, least);
    }
    Ok(())
}

fn to_content_id(id: &souk_market::ContentId) -> ContentId {
    ContentId::from_bytes(id.0)
}

#[cfg(test)]
mod tests {
    use souk_market::{
        BuyerFilter, Class, Credits, DeviceId, Dtype, LeaseId, Millis, Name, OrderId, Permille,
        Price, Resources, SigningKey, Units,
    };

    use super::*;
    use crate::lease::{Input, Output, Part, Request, Source};

    /// Two parts of 2 and of 4 ms, of 8 and of 8 million operations.
    fn start(flops: u64) -> Start {
        let part = |number: u64| Part {
            name: format!("part {number} of 2"),
            graph: ContentId::for_content(&[number as u8]),
            weights: Vec::new(),
            inputs: Vec::new(),
            outputs: vec![Output {
                name: "y".to_owned(),
                consumers: Vec::new(),
                is_wanted: true,
            }],
            flops,
            expected: Micros::from_millis(2 * number),
        };
        Start {
            sequences: 0,
            lease: LeaseId(1),
            job: JobId([1; 32]),
            parts: vec![part(1), part(2)],
            peers: Vec::new(),
            priority: 0,
            first: Request::default(),
            last: true,
        }
    }

    /// A receipt for so many outputs and so much device time.
    fn body(outputs: usize, usage: u64, declared: u64, delivered: u64) -> ReceiptBody {
        let someone = AccountKey([7; 32]);
        ReceiptBody {
            market: MarketId([1; 32]),
            lease: LeaseId(1),
            job: JobId([1; 32]),
            buyer: someone,
            provider: someone,
            graph: souk_market::ContentId([1; 32]),
            inputs: Vec::new(),
            outputs: vec![souk_market::ContentId([2; 32]); outputs],
            class: Class::default(),
            model: Name::try_from("device").unwrap(),
            emulated: true,
            dtype: Dtype::F32,
            declared_mega_ops: declared,
            delivered_mega_ops: delivered,
            usage: DeviceMicros(usage),
            metered: None,
            idle: DeviceMicros(0),
            idle_part: Permille(100),
            price: Price(1),
            amount: Credits(1),
            bytes_in: 0,
            bytes_out: 0,
            started: Millis(0),
            finished: Millis(1),
        }
    }

    /// Ten times both parts in 120 ms: half as fast as was promised.
    const OUTPUTS: usize = 20;
    const USAGE: u64 = 120_000;
    const DECLARED: u64 = 2_666;
    const DELIVERED: u64 = 1_333;

    #[test]
    fn a_receipt_tells_the_speed_that_follows_from_plan_and_bill() {
        let start = start(8_000_000);
        let check = |body: ReceiptBody| check_speed(&body, &start);
        check(body(OUTPUTS, USAGE, DECLARED, DELIVERED)).unwrap();
        // Slower than it was is its own harm; so is more than was promised.
        check(body(OUTPUTS, USAGE, DECLARED * 2, DELIVERED / 2)).unwrap();
        // The end came between the parts.
        check(body(OUTPUTS + 1, USAGE + 4_000, DECLARED, DELIVERED)).unwrap();
        let what = |checked: Result<(), Objection>| match checked {
            Err(Objection::Speed { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        let faster = check(body(OUTPUTS, USAGE, DECLARED, DECLARED));
        assert_eq!(what(faster), Speed::Delivered);
        let silent = check(body(OUTPUTS, USAGE, DECLARED, 0));
        assert_eq!(what(silent), Speed::Delivered);
        let humble = check(body(OUTPUTS, USAGE, DELIVERED, DELIVERED));
        assert_eq!(what(humble), Speed::Declared);
    }

    #[test]
    fn device_time_is_billed_within_the_lease_and_for_something() {
        let failed = |outputs, usage, failed| {
            let body = body(outputs, usage, 1, 0);
            check_usage(&body, DeviceMicros(USAGE), DeviceMicros(failed))
        };
        let check = |outputs, usage| failed(outputs, usage, 0);
        check(1, USAGE).unwrap();
        check(0, USAGE_MIN.0).unwrap();
        let (billed, possible) = (DeviceMicros(USAGE + 1), DeviceMicros(USAGE));
        assert_eq!(
            check(1, USAGE + 1),
            Err(Objection::Usage { billed, possible })
        );
        let billed = DeviceMicros(USAGE);
        assert_eq!(check(0, USAGE), Err(Objection::Nothing { billed }));
        failed(0, USAGE, USAGE).unwrap();
        assert!(failed(0, USAGE, USAGE - 1).is_err());
    }

    #[test]
    fn idle_time_is_billed_within_the_time_that_was_seen_and_never_for_a_lone_request() {
        let mut body = body(1, USAGE, 1, 0);
        body.idle = DeviceMicros(500_000);
        let held = DeviceMicros(USAGE + 500_000);
        assert_eq!(check_idle(&body, false, held), Ok(()));
        for (is_last, possible) in [(false, 600_000), (true, USAGE)] {
            let seen = if is_last { held.0 } else { possible };
            let (billed, possible) = (held, DeviceMicros(possible));
            let over = Err(Objection::Usage { billed, possible });
            assert_eq!(check_idle(&body, is_last, DeviceMicros(seen)), over);
        }
    }

    #[test]
    fn what_nobody_can_tell_is_not_objected_to() {
        let soon = body(2, 19_999, 1, 0);
        assert_eq!(check_speed(&soon, &start(8_000_000)), Ok(()));
        let unknown = body(OUTPUTS, USAGE, 67_000, 0);
        assert_eq!(check_speed(&unknown, &start(0)), Ok(()));
    }

    #[test]
    fn a_sessions_receipt_names_all_that_was_made_by_one_hash() {
        let ids = |bytes: &[u8]| -> BTreeSet<ContentId> {
            bytes
                .iter()
                .map(|byte| ContentId::for_content(&[*byte]))
                .collect()
        };
        let named = |made: &[u8]| {
            let hash = transcript(&ids(made)).map(|id| souk_market::ContentId(*id.as_bytes()));
            ReceiptBody {
                outputs: hash.into_iter().collect(),
                ..body(0, USAGE, 0, 0)
            }
        };
        let check = |receipt, reported_outputs: &[u8], served: &[u8]| {
            check_transcript(&receipt, &ids(reported_outputs), &ids(served))
        };
        assert_eq!(check(named(&[2, 1]), &[1], &[1, 2]), Ok(()));
        for (made, reported_outputs, served) in
            [(&[1][..], &[][..], &[1, 2][..]), (&[1], &[1, 2], &[1])]
        {
            let checked = check(named(made), reported_outputs, served);
            assert_eq!(
                checked,
                Err(Objection::Outputs),
                "{made:?} {reported_outputs:?} {served:?}"
            );
        }
        let id = souk_market::ContentId([3; 32]);
        let with_input = ReceiptBody {
            inputs: vec![id],
            ..named(&[1])
        };
        assert_eq!(check(with_input, &[], &[1]), Err(Objection::Input(id)));
        // Time that made nothing is billed by no hash of nothing.
        assert!(named(&[]).outputs.is_empty());
    }

    /// An ask at the price of [`body`], which promises these features.
    fn listing(provider: AccountKey, features: Features) -> Listing {
        let resources = Resources {
            model: Name::try_from("device").unwrap(),
            features,
            ..Resources::default()
        };
        Listing {
            order: OrderId(1),
            provider,
            name: Name::default(),
            reputation: Permille(500),
            stake: Credits(0),
            device: DeviceId(1),
            class: Class::default(),
            resources,
            price: Price(1),
            quantity: Units(1),
            duration_min: Millis(1),
            duration_max: Millis(10_000),
            notice: Millis(0),
            spot: Vec::new(),
            idle: Permille(100),
            accepts: BuyerFilter::default(),
            resale: None,
        }
    }

    /// Checks a receipt of one part, which reads `x`, made `outputs` and promised `features`. The
    /// receipt names `inputs`.
    fn check_inputs(
        features: Features,
        inputs: &[ContentId],
        outputs: &[ContentId],
    ) -> Result<(), Objection> {
        let key = SigningKey::from_bytes(&[5; 32]);
        let provider = AccountKey::from(&key);
        let mut start = start(0);
        start.parts.truncate(1);
        start.parts[0].inputs = vec![Input {
            name: "x".to_owned(),
            source: Source::Buyer,
            fed: None,
        }];
        let list = |ids: &[ContentId]| {
            let id = |id: &ContentId| souk_market::ContentId(*id.as_bytes());
            ids.iter().map(id).collect::<Vec<_>>()
        };
        let body = ReceiptBody {
            provider,
            graph: list(&[start.graph_of(1)])[0],
            inputs: list(inputs),
            outputs: list(outputs),
            emulated: false,
            ..body(0, USAGE_MIN.0, 1, 0)
        };
        let terms = Terms {
            lease: body.lease,
            provider,
            ask: OrderId(1),
            price: body.price,
            quantity: Units(1),
            tokens: None,
            escrow: Credits(1_000),
            start: Millis(0),
            deadline: Millis(10_000),
        };
        let purchase = Purchase {
            market: body.market,
            buyer: body.buyer,
            job: body.job,
            terms: &terms,
            listing: &listing(provider, features),
            ends: terms.deadline,
            payable: Micros::from_seconds(10),
            holdable: Micros::from_seconds(10),
            failed_run: Micros(0),
            start: &start,
            parts: 1,
            known_inputs: [ContentId::for_content(b"x")].into(),
            unreported_inputs: 0,
            reported_outputs: outputs.iter().copied().collect(),
            served: BTreeSet::new(),
        };
        purchase.check_receipt(&Receipt::new(body).sign_as_provider(&key))
    }

    /// Nobody can dispute an output of a receipt without inputs.
    #[test]
    fn who_promised_exact_results_names_the_inputs_of_what_it_made() {
        let (x, y) = (ContentId::for_content(b"x"), ContentId::for_content(b"y"));
        let exact = Features::EXACT_1;
        assert_eq!(check_inputs(exact, &[x], &[y]), Ok(()));
        assert_eq!(check_inputs(exact, &[], &[y]), Err(Objection::NoInput));
        // It made nothing, or promised nothing.
        assert_eq!(check_inputs(exact, &[], &[]), Ok(()));
        assert_eq!(check_inputs(Features(0), &[], &[y]), Ok(()));
    }
}
