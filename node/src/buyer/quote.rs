//! The quote: what of a job would run where, for how long and at what price. No money moves.

use bytes::Bytes;
use souk_devices::catalogue;
use souk_devices::cpu::Cpu;
use souk_devices::processor::{CompileError, Processor, Subgraph as Compilable};
use souk_market::{Credits, Dtype, Listing};
use souk_memory::{ContentId, DType};
use souk_scheduler::cut::{self, CutError, Subgraph};
use souk_scheduler::graph::{Bindings, Graph, ImportError};
use souk_scheduler::plan::{
    Link, Links, Objective, Offer, Operators, Plan, PlanError, PlanOptions, Throughput, Weights,
    plan,
};

use super::Buyer;
use crate::broker::BrokerError;
use crate::job::{Job, Limits, Prefer};

/// Micro-credits in a credit.
pub const MICRO: f64 = 1e6;

/// A job planned over the book.
pub struct Quote {
    /// The model with the inputs bound.
    pub graph: Graph,
    /// The asks that suit the job's limits; the plan's offers, in the same order.
    pub listings: Vec<Listing>,
    /// How many asks were seen in all.
    pub seen: usize,
    /// What runs where and when, at what price (in micro-credits).
    pub plan: Plan,
    /// The plan's parts as models, in an order in which they can run.
    pub parts: Vec<Subgraph>,
}

/// Why there is no quote.
#[derive(Debug, thiserror::Error)]
pub enum QuoteError {
    /// The model or its inputs are wrong.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A device's runtime refuses something in the model.
    #[error("no device can run the model: {0}")]
    Unsupported(#[from] CompileError),
    /// The market was not reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// No ask suits.
    #[error("no provider is eligible: {seen} asks seen{}", reasons(lacks))]
    NoneEligible {
        /// How many asks there are.
        seen: usize,
        /// Of each, its model and what it lacks.
        lacks: Vec<(String, String)>,
    },
    /// No plan over the eligible asks fits the limits.
    #[error("no plan fits: {0}")]
    Plan(PlanError),
    /// The cheapest plan is over the budget.
    #[error("the cheapest plan costs {cheapest:.6} credits, the budget is {budget:.6}")]
    Budget {
        /// Its price in credits.
        cheapest: f64,
        /// The budget in credits.
        budget: f64,
    },
    /// The plan's parts cannot be made into models.
    #[error(transparent)]
    Cut(#[from] CutError),
}

impl QuoteError {
    /// Whether a book with more devices in it could do better.
    pub(super) fn passes(&self) -> bool {
        match self {
            QuoteError::NoneEligible { seen, .. } => *seen == 0,
            QuoteError::Plan(error) => matches!(error, PlanError::TooFewOffers { .. }),
            _ => false,
        }
    }
}

impl Quote {
    /// The hash that says that two quotes run the same parts on the same providers.
    pub fn hash(&self) -> ContentId {
        let mut words = Vec::new();
        for part in &self.parts {
            words.extend_from_slice(part.id.as_bytes());
            let listing = &self.listings[self.plan.parts[part.part].offer];
            words.extend_from_slice(&listing.provider.0);
            words.extend_from_slice(&listing.price.0.to_le_bytes());
        }
        ContentId::of(&words)
    }

    /// The ask that runs a part.
    pub fn listing(&self, part: usize) -> &Listing {
        &self.listings[self.plan.parts[part].offer]
    }
}

pub(super) async fn quote(buyer: &Buyer, job: &Job) -> Result<Quote, QuoteError> {
    let graph = import(job)?;
    // Whole, on this machine, before anything is bought: every device runs the same runtime.
    let whole = cut::whole(&graph)?;
    preflight(&graph, &whole)?;
    let book = buyer.broker().book().await?;
    let seen = book.len();
    let (listings, lacks) = eligible(book, &job.limits, buyer);
    if listings.is_empty() {
        return Err(QuoteError::NoneEligible { seen, lacks });
    }
    let offers: Vec<Offer> = listings.iter().map(offer).collect();
    let plan = plan(&graph, &offers, &links(&listings), &options(&job.limits));
    let plan = plan.map_err(|error| match error {
        PlanError::Budget { cheapest, budget } => QuoteError::Budget {
            cheapest: cheapest / MICRO,
            budget: budget / MICRO,
        },
        other => QuoteError::Plan(other),
    })?;
    let parts = plan.cut(&graph)?;
    Ok(Quote {
        graph,
        listings,
        seen,
        plan,
        parts,
    })
}

fn import(job: &Job) -> Result<Graph, ImportError> {
    let mut bindings = Bindings::new();
    for (name, tensor) in &job.inputs {
        bindings = bindings.input(name, tensor.dtype(), tensor.dims());
    }
    let mut read = |relative: &str| -> Option<Bytes> {
        let path = job.folder.as_ref()?.join(relative);
        std::fs::read(path).ok().map(Bytes::from)
    };
    Graph::import_with(job.model.clone(), &bindings, &mut read)
}

fn preflight(graph: &Graph, whole: &Subgraph) -> Result<(), CompileError> {
    let one = std::num::NonZeroUsize::MIN;
    let described = catalogue::all()
        .first()
        .expect("the catalogue has processors")
        .clone();
    let weights = cut::weight_bytes(graph).collect();
    let compilable = Compilable {
        model: whole.model.clone(),
        weights,
    };
    Cpu::new(described, one).compile(&compilable).map(|_| ())
}

/// The asks that suit the limits, and what each of the others lacks.
fn eligible(
    book: Vec<Listing>,
    limits: &Limits,
    buyer: &Buyer,
) -> (Vec<Listing>, Vec<(String, String)>) {
    let (mut suit, mut lacks) = (Vec::new(), Vec::new());
    for listing in book {
        match lack(&listing, limits, buyer) {
            None => suit.push(listing),
            Some(lack) => lacks.push((listing.resources.model.as_str().to_owned(), lack)),
        }
    }
    (suit, lacks)
}

fn lack(listing: &Listing, limits: &Limits, buyer: &Buyer) -> Option<String> {
    if listing.provider == buyer.account() {
        return Some("is the buyer's own".to_owned());
    }
    if limits.excluded.contains(&listing.provider) {
        return Some("is excluded".to_owned());
    }
    if limits.real_only && listing.resources.emulated {
        return Some("is emulated".to_owned());
    }
    let limit = limits.price_max?;
    let (asked, limit) = (listing.price.0 as f64 / MICRO, limit.0 as f64 / MICRO);
    (asked > limit).then(|| format!("asks {asked} credits a second, above the limit of {limit}"))
}

fn reasons(lacks: &[(String, String)]) -> String {
    let each: Vec<String> = lacks
        .iter()
        .map(|(model, lack)| format!("{model} {lack}"))
        .collect();
    if each.is_empty() {
        String::new()
    } else {
        format!(": {}", each.join("; "))
    }
}

fn offer(listing: &Listing) -> Offer {
    let stated = &listing.resources;
    let rate = |(dtype, market): (DType, Dtype)| {
        let mega_ops = stated.throughput.of(market);
        let flops_per_second = mega_ops as f64 * 1e6;
        (mega_ops > 0).then_some(Throughput {
            class: None,
            dtype: Some(dtype),
            flops_per_second,
        })
    };
    let dtypes = [
        (DType::F32, Dtype::F32),
        (DType::F64, Dtype::F64),
        (DType::F16, Dtype::F16),
        (DType::Bf16, Dtype::Bf16),
        (DType::I8, Dtype::Int8),
    ];
    let emulated = if stated.emulated { " (emulated)" } else { "" };
    Offer {
        label: format!("{}{emulated}", stated.model.as_str()),
        throughput: dtypes.into_iter().filter_map(rate).collect(),
        bytes_per_second: stated.memory_bandwidth as f64,
        memory_bytes: stated.memory_bytes,
        launch_seconds: stated.launch_overhead_ns as f64 / 1e9,
        cost_per_second: listing.price.0 as f64,
        operators: Operators::All,
    }
}

/// Each provider's own link to and from the buyer; between two providers, the worse of both.
fn links(listings: &[Listing]) -> Links {
    let link = |listing: &Listing| Link {
        latency_seconds: listing.resources.link_latency_us as f64 / 1e6,
        bytes_per_second: (listing.resources.link_bandwidth as f64).max(1.0),
    };
    let worse = |a: Link, b: Link| Link {
        latency_seconds: a.latency_seconds.max(b.latency_seconds),
        bytes_per_second: a.bytes_per_second.min(b.bytes_per_second),
    };
    let buyer: Vec<Link> = listings.iter().map(link).collect();
    let row = |from: &Link| buyer.iter().map(|to| worse(*from, *to)).collect();
    Links {
        between: buyer.iter().map(row).collect(),
        buyer,
    }
}

fn options(limits: &Limits) -> PlanOptions {
    PlanOptions {
        min_devices: limits.providers_min,
        max_devices: limits.providers_max.max(limits.providers_min),
        objective: match limits.prefer {
            Prefer::Fastest => Objective::Makespan,
            Prefer::Cheapest => Objective::Cost,
        },
        budget: limits.budget.map(|Credits(micro)| micro as f64),
        // Held after the first job with the same model; purchase allows time for the first.
        weights: Weights::Held,
        ..PlanOptions::default()
    }
}
