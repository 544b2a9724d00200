//! Going on with a job whose buyer died: what its providers finished meanwhile is taken over,
//! whatever else still runs for it is ended, and the rest is run like any rest.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use souk_market::{LeaseId, Receipt, Trade};
use souk_memory::{ContentId, Tensor};
use tokio::sync::mpsc;

use super::course::stream::Streaming;
use super::course::{self, Course};
use super::dispatch;
use super::doubts::Doubts;
use super::holders::Holders;
use super::journal::{self, Journal, JournalError, Round};
use super::session::Session;
use super::{
    Answer, Buyer, Ended, Finished, JobError, Objection, Progress, QuoteError, Requests, compare,
    purchase, quote, settle,
};
use crate::buyer::job::Job;
use crate::clock::unix_ms;
use crate::protocols::lease::{Start, WINDOW_MAX};

/// Answers that are compared and were not given on yet.
const ANSWERS_MAX: usize = 4;

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
    let mut doubts = None;
    if let Some(open) = open {
        let told = journal::given_under(&noted, open.round.job);
        match pay_for_stream(&mut course, &open, given, &told).await {
            Ok(left) => doubts = Some(left),
            Err(error) => {
                tracing::warn!(%error, "nothing was signed for; providers note what they did");
            }
        }
    }
    end_running(&mut course).await.map_err(Ended::at_once)?;
    let Some(doubts) = doubts else {
        let streaming = Streaming::new(course, requests, answers);
        return buyer.told(streaming.complete(None).await).await;
    };
    let (tap, tapped) = mpsc::channel(ANSWERS_MAX);
    let streaming = Streaming::new(course, requests, tap);
    let deciding = doubts.pass_on(tapped, answers);
    let (ended, right) = tokio::join!(streaming.complete(None), deciding);
    let paid = pay_late(buyer, journal, right).await;
    let ended = match (ended, paid) {
        (Ok(mut finished), Ok(receipts)) => {
            finished.receipts.extend(receipts);
            Ok(finished)
        }
        (Ok(_), Err(error)) => Err((error, Vec::new())),
        (ended, _) => ended,
    };
    buyer.told(ended).await
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
    /// The lease that was to run the same, if each part was run twice.
    fn twin_of(&self, session: &Session) -> Option<LeaseId> {
        let names = |start: &Start| -> Vec<String> {
            start.parts.iter().map(|part| part.name.clone()).collect()
        };
        // One that was told to run fewer is known by what it was told first.
        let told = |start: &&Start| start.lease == session.start.lease;
        let own = names(self.round.starts.iter().find(told)?);
        let runs_the_same =
            |other: &&Start| other.lease != session.start.lease && names(other) == own;
        let twin = self.round.starts.iter().find(runs_the_same);
        twin.map(|twin| twin.lease)
    }
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
    let (holders, mut paid) = (Holders::of(buyer, &sessions), Vec::new());
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
        match settle::fetch(buyer, &session, &names, &holders).await {
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
/// its answers were made of: a receipt that lacks any of it is refused. Where each part was to be
/// run twice, what is not borne out by the other run is left in doubt.
async fn pay_for_stream(
    course: &mut Course<'_>,
    open: &Open,
    given: &BTreeSet<ContentId>,
    told: &BTreeMap<String, BTreeSet<ContentId>>,
) -> Result<Doubts, JobError> {
    let (mut sessions, trades) = ask(course, open).await?;
    for session in sessions.values_mut() {
        session.given = given.clone();
        session.untold_max = WINDOW_MAX as usize;
    }
    let mut doubts = Doubts::new(course.buyer(), compare::tolerance_of(course.graph()));
    let objection = |(place, session): (&usize, &Session)| {
        let checked = settle::check(session, &trades[*place], &sessions);
        let is_whole = open.twin_of(session).is_some() || names_all_of(session, told);
        let names_all = is_whole.then_some(()).ok_or(Objection::Outputs);
        Some((*place, checked.and(names_all).err()?))
    };
    let objections: Vec<(usize, Objection)> = sessions.iter().filter_map(objection).collect();
    for (place, objection) in objections {
        let session = sessions.remove(&place);
        let session = session.expect("it was found there just now");
        doubts.refuse(session, objection.to_string());
    }
    let told = told
        .iter()
        .flat_map(|(name, told)| told.iter().map(|id| (name.clone(), *id)));
    let (told, mut right) = (told.collect(), Vec::new());
    while let Some((_, session)) = sessions.pop_first() {
        let Some(twin) = open.twin_of(&session) else {
            right.push(session);
            continue;
        };
        let place = sessions
            .iter()
            .find(|(_, other)| other.start.lease == twin)
            .map(|(place, _)| *place);
        let twin = place.and_then(|place| sessions.remove(&place));
        doubts.compare(session, twin, &told).await;
    }
    right.extend(doubts.take_right());
    course.settle(right).await?;
    Ok(doubts)
}

/// Signs and pays what turned out to be right.
async fn pay_late(
    buyer: &Buyer,
    journal: &mut Journal,
    sessions: Vec<Session>,
) -> Result<Vec<Receipt>, JobError> {
    let (mut gathered, mut receipts) = (settle::Gathered::default(), Vec::new());
    for session in sessions {
        receipts.push(gathered.sign(buyer, session).await);
    }
    if !receipts.is_empty() {
        let signed = receipts.clone();
        journal.change(|record| record.receipts.extend(signed))?;
        settle::pay(buyer, &receipts).await?;
    }
    Ok(receipts)
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
