//! What two runs of the same part say about each other, and what a third decides.
//!
//! Both runs read the same inputs, so honest results agree within rounding. Where they do not, or
//! where only one of the two came to its end, a third provider runs the part; whoever agrees with
//! it is paid, whoever does not is not.

use std::collections::{BTreeMap, BTreeSet};

use libp2p::PeerId;
use souk_market::AccountKey;
use souk_memory::{ContentId, Tensor};
use souk_scheduler::graph::cut::Subgraph;
use souk_scheduler::graph::{Bindings, Graph};

use super::compare::{agree, tolerance};
use super::purchase::Bought;
use super::session::Session;
use super::{Buyer, JobError, Quote, RestError, lineage, settle};

/// What one place gave for one request.
pub(super) struct Run<'a> {
    pub(super) party: (AccountKey, PeerId),
    pub(super) outputs: &'a [(String, ContentId)],
    /// How many of its parts it ran.
    pub(super) parts: usize,
}

impl<'a> Run<'a> {
    /// Of a session that ran its parts once.
    pub(super) fn of(session: &'a Session) -> Run<'a> {
        Run {
            party: (session.provider, session.peer),
            outputs: &session.finished.outputs,
            parts: session.start.parts.len(),
        }
    }

    async fn fetch(
        &self,
        buyer: &Buyer,
        wanted: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Tensor>, JobError> {
        settle::fetch_among(buyer, self.party, self.outputs, wanted).await
    }
}

/// A part whose results need a third run.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// The part's number in the quote's order.
    number: usize,
    /// The value that differs, or the part's first where there is nothing to differ from.
    value: String,
    /// The outputs of each run that came to its end, by place, with the provider.
    answers: Vec<(usize, AccountKey, BTreeMap<String, Tensor>)>,
}

/// What was decided.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// The places that are not paid, and why.
    pub(super) outvoted: Vec<(usize, JobError)>,
    /// Parts whose first run is wrong, or read what is wrong.
    pub(super) tainted: BTreeSet<usize>,
    /// The right values in place of wrong ones.
    pub(super) right: BTreeMap<String, Tensor>,
}

/// The parts whose two runs do not agree.
pub(super) async fn questions(
    buyer: &Buyer,
    quote: &Quote,
    bought: &Bought,
    given: &BTreeMap<usize, Run<'_>>,
) -> Result<Vec<Question>, JobError> {
    let mut questions = Vec::new();
    for (number, part) in quote.parts.iter().enumerate() {
        let first = bought.place_of(quote, part.part);
        let runs = [Some(first), bought.second_of(first)];
        let runs = runs
            .into_iter()
            .flatten()
            .filter_map(|place| Some((place, given.get(&place)?)))
            .filter(|(_, run)| lineage::was_run(quote, bought, part.part, run.parts));
        let runs: Vec<(usize, &Run<'_>)> = runs.collect();
        if runs.is_empty() || same_ids(part, &runs) {
            continue;
        }
        let names: BTreeSet<String> = part.outputs.iter().map(|b| b.name.clone()).collect();
        let mut answers = Vec::new();
        for (place, run) in runs {
            answers.push((place, run.party.0, run.fetch(buyer, &names).await?));
        }
        let differs = |name: &&String| match &answers[..] {
            [(_, _, a), (_, _, b)] => !both_agree(a.get(*name), b.get(*name), quote, part),
            _ => true,
        };
        if let Some(value) = names.iter().find(differs).cloned() {
            questions.push(Question {
                number,
                value,
                answers,
            });
        }
    }
    Ok(questions)
}

/// Whether both runs came to the end with outputs that are equal to the bit.
fn same_ids(part: &Subgraph, runs: &[(usize, &Run<'_>)]) -> bool {
    let id = |run: &Run<'_>, name: &String| {
        let named = run.outputs.iter().find(|(made, _)| made == name);
        named.map(|(_, id)| *id)
    };
    match runs {
        [(_, a), (_, b)] => part
            .outputs
            .iter()
            .all(|o| id(a, &o.name) == id(b, &o.name)),
        _ => false,
    }
}

/// Whether two runs of the part that makes `value` gave the same of it.
pub(super) fn same_value(quote: &Quote, value: &str, a: &Tensor, b: &Tensor) -> bool {
    let makes = |part: &&Subgraph| part.outputs.iter().any(|output| output.name == value);
    let part = quote.parts.iter().find(makes);
    part.is_some_and(|part| both_agree(Some(a), Some(b), quote, part))
}

fn both_agree(a: Option<&Tensor>, b: Option<&Tensor>, quote: &Quote, part: &Subgraph) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => agree(a, b, tolerance(&quote.graph, part)),
        _ => false,
    }
}

/// The part in question as a graph of its own, with the inputs that both runs read.
pub(super) async fn work(
    buyer: &Buyer,
    quote: &Quote,
    bought: &Bought,
    inputs: &BTreeMap<String, Tensor>,
    runs: &BTreeMap<usize, Run<'_>>,
    question: &Question,
) -> Result<(Graph, BTreeMap<String, Tensor>), JobError> {
    let part = &quote.parts[question.number];
    let mut given = BTreeMap::new();
    for boundary in &part.inputs {
        let name = boundary.name.clone();
        let tensor = match boundary.from {
            None => inputs.get(&name).cloned(),
            Some(maker) => match runs.get(&bought.place_of(quote, maker)) {
                None => None,
                Some(run) => run
                    .fetch(buyer, &[name.clone()].into())
                    .await?
                    .remove(&name),
            },
        };
        given.extend(tensor.map(|tensor| (name, tensor)));
    }
    let mut bindings = Bindings::new();
    for (name, tensor) in &given {
        bindings = bindings.input(name, tensor.dtype(), tensor.dims());
    }
    let graph = Graph::import(part.model.clone(), &bindings).map_err(RestError::from)?;
    Ok((graph, given))
}

impl Verdict {
    /// Decides a question by the outputs of a third run.
    pub(super) fn decide(
        &mut self,
        quote: &Quote,
        question: &Question,
        third: BTreeMap<String, Tensor>,
    ) -> Result<(), JobError> {
        let part = &quote.parts[question.number];
        let agrees = |values: &BTreeMap<String, Tensor>| {
            third
                .iter()
                .all(|(name, right)| both_agree(values.get(name), Some(right), quote, part))
        };
        let (right, wrong): (Vec<_>, Vec<_>) = question
            .answers
            .iter()
            .partition(|(_, _, values)| agrees(values));
        let value = question.value.clone();
        if right.is_empty() && wrong.len() > 1 {
            return Err(JobError::Disagreement { value });
        }
        for (place, provider, _) in &wrong {
            let (provider, value) = (*provider, value.clone());
            self.outvoted
                .push((*place, JobError::Outvoted { provider, value }));
        }
        let first = question.answers.first().map(|(place, ..)| *place);
        if wrong.iter().any(|(place, ..)| Some(*place) == first) {
            self.taint(quote, part.part);
            self.right.extend(third);
        }
        Ok(())
    }

    /// The part and all that read, directly or not, what it made.
    fn taint(&mut self, quote: &Quote, part: usize) {
        let mut open = vec![part];
        while let Some(next) = open.pop() {
            if self.tainted.insert(next) {
                let made = quote
                    .parts
                    .iter()
                    .filter(|p| p.part == next)
                    .flat_map(|p| &p.outputs);
                open.extend(made.flat_map(|boundary| boundary.to.iter().copied()));
            }
        }
    }
}
