//! Going on with a job whose buyer died: what its providers finished meanwhile is taken over,
//! whatever else still runs for it is ended, and the rest is run like any rest.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use souk_market::{LeaseId, Trade};
use souk_memory::{ContentId, Tensor};
use tokio::sync::mpsc;

use super::course::stream::Streaming;
use super::course::{self, Course};
use super::dispatch::{self, Session};
use super::journal::{self, Journal, JournalError, Round};
use super::{
    Answer, Buyer, Ended, Finished, JobError, Objection, Progress, QuoteError, Requests, purchase,
    quote, settle,
};
use crate::job::Job;
use crate::lease_protocol::{Start, WINDOW_MAX};
use crate::trader::unix_ms;

/// Resumes the job of a journal.
pub(super) async fn resume(
    buyer: &Buyer,
    job: &Job,
    journal: &mut Journal,
    progress: &mpsc::Sender<Progress>,
) -> Result<Finished, Box<Ended>> {
    let open = Open::of(journal);
    let course = course_of((buyer, job), &job.inputs, journal, progress);
    let mut course = course.map_err(Ended::at_once)?;
    if let Some(open) = open.filter(|_| job.limits.copies == 1)
        && let Err(error) = take_over(&mut course, &open).await
    {
        // What cannot be taken over is run again.
        tracing::warn!(%error, "nothing was taken over from the providers");
    }
    end_running(&mut course).await.map_err(Ended::at_once)?;
    buyer.finish(course, None).await
}

/// Resumes the stream of a journal: what its providers did until they lost their buyer is paid, and
/// what was not answered is asked again.
pub(super) async fn resume_stream(
    buyer: &Buyer,
    job: &Job,
    journal: &mut Journal,
    (requests, answers): (Requests, mpsc::Sender<Answer>),
    given: &BTreeSet<ContentId>,
    progress: &mpsc::Sender<Progress>,
) -> Result<Finished, Box<Ended>> {
    let open = Open::of(journal);
    let noted = journal.answers();
    let noted = noted.map_err(|error| Ended::at_once(error.into()))?;
    let course = course_of((buyer, job), &BTreeMap::new(), journal, progress);
    let mut course = course.map_err(Ended::at_once)?;
    if let Some(open) = open {
        let told = journal::given_under(&noted, open.round.job);
        if let Err(error) = pay_for_stream(&mut course, &open, given, &told).await {
            tracing::warn!(%error, "nothing was signed for; providers note what they did");
        }
    }
    end_running(&mut course).await.map_err(Ended::at_once)?;
    let streaming = Streaming::new(course, requests, answers);
    buyer.told(streaming.complete(None).await).await
}

/// The round that was under way.
struct Open {
    round: Round,
    /// Leases that are settled.
    settled: BTreeSet<LeaseId>,
}

impl Open {
    fn of(journal: &Journal) -> Option<Open> {
        let record = journal.record();
        let settled = record.receipts.iter().map(|receipt| receipt.body.lease);
        Some(Open {
            round: record.rounds.last()?.clone(),
            settled: settled.collect(),
        })
    }

    /// The leases that are not settled, and what their providers were told.
    fn leases(&self) -> impl Iterator<Item = (&Trade, &Start)> {
        let told = self.round.trades.iter().zip(&self.round.starts);
        told.filter(|(trade, _)| !self.settled.contains(&trade.lease))
    }
}

impl Open {
    /// Whether whoever else ran the parts of a session made the same of them, as far as both came;
    /// where nobody else was to run them, that is so.
    fn bears_out(&self, session: &Session, all: &BTreeMap<usize, Session>) -> bool {
        let runs_the_same = |other: &Start| {
            let names = |start: &Start| -> Vec<String> {
                start.parts.iter().map(|part| part.name.clone()).collect()
            };
            other.lease != session.start.lease && names(other) == names(&session.start)
        };
        let Some(second) = self.round.starts.iter().find(|start| runs_the_same(start)) else {
            return true;
        };
        let found = all.values().find(|it| it.start.lease == second.lease);
        let outputs = &session.finished.outputs;
        found.is_some_and(|second| agree(outputs, &second.finished.outputs))
    }
}

/// Whether one list of outputs holds all of the other's, which came less far.
fn agree(one: &[(String, ContentId)], other: &[(String, ContentId)]) -> bool {
    let (one, other): (BTreeSet<_>, BTreeSet<_>) = (one.iter().collect(), other.iter().collect());
    one.is_superset(&other) || other.is_superset(&one)
}

/// The course of a journal, which must be about the same job.
fn course_of<'a>(
    (buyer, job): (&'a Buyer, &Job),
    inputs: &BTreeMap<String, Tensor>,
    journal: &'a mut Journal,
    progress: &'a mpsc::Sender<Progress>,
) -> Result<Course<'a>, JobError> {
    let graph = quote::import(job).map_err(QuoteError::from)?;
    let subject = course::subject(&graph, inputs).map_err(QuoteError::from)?;
    if subject != journal.record().subject {
        let name = journal.record().name.clone();
        return Err(JournalError::Subject { name }.into());
    }
    course::of(buyer, job, graph, progress).journaled(journal)
}

/// Asks the providers of a round how their leases went: the sessions of those that are done, and
/// their trades, by the same places.
async fn ask(
    course: &mut Course<'_>,
    open: &Open,
) -> Result<(BTreeMap<usize, Session>, Vec<Trade>), JobError> {
    let buyer = course.buyer();
    dispatch::find(buyer, &course::providers(&open.round)).await?;
    let asking = open.leases().map(|(trade, start)| {
        let expected = start.parts.iter().map(|part| part.expected).sum();
        let patience = unix_ms() + dispatch::patience(expected).as_millis() as u64;
        let deadline = course.deadline(Some(trade.deadline.0.min(patience)));
        async move {
            (
                *trade,
                dispatch::resume(buyer, trade.provider, start.clone(), deadline).await,
            )
        }
    });
    let (mut sessions, mut trades) = (BTreeMap::<usize, Session>::new(), Vec::new());
    for (trade, session) in join_all(asking).await {
        match session {
            Ok(session) => {
                sessions.insert(trades.len(), session);
                trades.push(trade);
            }
            Err(error) => {
                tracing::info!(%error, "a lease is not taken over");
                // One that was started again knows nothing of it; that is no reason to avoid it.
                let forgot = matches!(error, JobError::Provider { .. });
                if let Some(provider) = error.culprit().filter(|_| !forgot) {
                    course.exclude(provider)?;
                }
            }
        }
    }
    Ok((sessions, trades))
}

/// Fetches, signs and pays what the providers of a round finished, those not yet settled.
async fn take_over(course: &mut Course<'_>, open: &Open) -> Result<(), JobError> {
    let buyer = course.buyer();
    let (mut sessions, trades) = ask(course, open).await?;
    let right = |place: &usize| settle::check(&sessions[place], &trades[*place], &sessions).is_ok();
    let right: Vec<usize> = sessions.keys().copied().filter(right).collect();
    let mut paid = Vec::new();
    for place in right {
        let session = sessions
            .remove(&place)
            .expect("it was found there just now");
        let names = session
            .finished
            .outputs
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        match settle::fetch(buyer, &session, &names).await {
            Ok(values) => {
                course.keep(values)?;
                paid.push(session);
            }
            Err(error) => tracing::info!(%error, "a lease is not taken over"),
        }
    }
    course.settle(paid).await
}

/// Signs and pays what the providers of a stream did until they lost their buyer. `told` is what
/// its answers were made of: a receipt that lacks any of it is not signed, nor, where each part was
/// run twice, one that the other run does not bear out.
async fn pay_for_stream(
    course: &mut Course<'_>,
    open: &Open,
    given: &BTreeSet<ContentId>,
    told: &BTreeMap<String, BTreeSet<ContentId>>,
) -> Result<(), JobError> {
    let (mut sessions, trades) = ask(course, open).await?;
    for session in sessions.values_mut() {
        session.given = given.clone();
        session.untold_max = WINDOW_MAX as usize;
    }
    let mut right = Vec::new();
    for (place, session) in &sessions {
        let borne_out = names_all_of(session, told) && open.bears_out(session, &sessions);
        let names_all = borne_out.then_some(());
        let checked = settle::check(session, &trades[*place], &sessions);
        match checked.and(names_all.ok_or(Objection::Outputs)) {
            Ok(()) => right.push(*place),
            Err(objection) => {
                tracing::warn!(provider = %session.provider, %objection, "not signed")
            }
        }
    }
    let taken = |place| sessions.remove(&place);
    let paid = right.into_iter().filter_map(taken).collect();
    course.settle(paid).await
}

/// Whether a session names every tensor of the answers that its provider made.
fn names_all_of(session: &Session, told: &BTreeMap<String, BTreeSet<ContentId>>) -> bool {
    let outputs = session.start.parts.iter().flat_map(|part| &part.outputs);
    let named: BTreeSet<ContentId> = session.finished.outputs.iter().map(|(_, id)| *id).collect();
    outputs
        .filter_map(|output| told.get(&output.name))
        .all(|told| told.is_subset(&named))
}

/// Ends whatever still runs for the job, also under an id that the journal did not come to name.
async fn end_running(course: &mut Course<'_>) -> Result<(), JobError> {
    course.skip_unrecorded();
    let buyer = course.buyer();
    let leases = buyer
        .broker()
        .job_leases(buyer.account(), course.jobs())
        .await?;
    let running = leases
        .iter()
        .filter(|lease| lease.is_running())
        .map(|lease| lease.id);
    purchase::end(buyer, running).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_agree_as_far_as_both_came() {
        let made = |words: &[&str]| -> Vec<(String, ContentId)> {
            let one = |word: &&str| ("y".to_owned(), ContentId::of(word.as_bytes()));
            words.iter().map(one).collect()
        };
        assert!(agree(&made(&["a", "b"]), &made(&["b", "a", "c"])));
        assert!(agree(&made(&["a", "b"]), &made(&["a"])));
        assert!(!agree(&made(&["a", "b"]), &made(&["a", "c"])));
    }
}
