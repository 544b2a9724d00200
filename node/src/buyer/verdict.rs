//! What two runs of the same part say about each other, and what a third decides.
//!
//! Both runs read the same inputs, so honest results agree within rounding. Where they do not, or
//! where only one of the two came to its end, a third provider runs the part; whoever agrees with
//! it is paid, whoever does not is not.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::Tensor;
use souk_scheduler::cut::Subgraph;
use souk_scheduler::graph::{Bindings, Graph};

use super::compare::{agree, tolerance};
use super::dispatch::Session;
use super::purchase::Bought;
use super::{Buyer, JobError, Quote, RestError, lineage, settle};

/// A part whose results need a third run.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// The part's number in the quote's order.
    number: usize,
    /// The value that differs, or the part's first where there is nothing to differ from.
    value: String,
    /// The outputs of each run that came to its end, by place, with the provider.
    answers: Vec<(usize, souk_market::AccountKey, BTreeMap<String, Tensor>)>,
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
    sessions: &BTreeMap<usize, Session>,
) -> Result<Vec<Question>, JobError> {
    let mut questions = Vec::new();
    for (number, part) in quote.parts.iter().enumerate() {
        let first = bought.place_of(quote, part.part);
        let runs = [Some(first), bought.second_of(first)];
        let runs = runs
            .into_iter()
            .flatten()
            .filter_map(|place| Some((place, sessions.get(&place)?)))
            .filter(|(_, session)| lineage::was_run(quote, bought, part.part, session));
        let runs: Vec<(usize, &Session)> = runs.collect();
        if runs.is_empty() || same_ids(part, &runs) {
            continue;
        }
        let names: BTreeSet<String> = part.outputs.iter().map(|b| b.name.clone()).collect();
        let mut answers = Vec::new();
        for (place, session) in runs {
            let values = settle::fetch(buyer, session, &names).await?;
            answers.push((place, session.provider, values));
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
fn same_ids(part: &Subgraph, runs: &[(usize, &Session)]) -> bool {
    let id = |session: &Session, name: &String| {
        let outputs = &session.finished.outputs;
        outputs
            .iter()
            .find(|(made, _)| made == name)
            .map(|(_, id)| *id)
    };
    match runs {
        [(_, a), (_, b)] => part
            .outputs
            .iter()
            .all(|o| id(a, &o.name) == id(b, &o.name)),
        _ => false,
    }
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
    sessions: &BTreeMap<usize, Session>,
    question: &Question,
) -> Result<(Graph, BTreeMap<String, Tensor>), JobError> {
    let part = &quote.parts[question.number];
    let mut given = BTreeMap::new();
    for boundary in &part.inputs {
        let name = boundary.name.clone();
        let tensor = match boundary.from {
            None => inputs.get(&name).cloned(),
            Some(maker) => match sessions.get(&bought.place_of(quote, maker)) {
                None => None,
                Some(session) => {
                    let wanted = [name.clone()].into();
                    settle::fetch(buyer, session, &wanted).await?.remove(&name)
                }
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
