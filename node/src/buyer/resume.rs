//! Going on with a job whose buyer died: what its providers finished meanwhile is taken over,
//! whatever else still runs for it is ended, and the rest is run like any rest.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use souk_market::LeaseId;

use super::course::{self, Course};
use super::dispatch::{self, Session};
use super::journal::{Journal, JournalError, Round};
use super::{Buyer, Ended, Finished, JobError, Progress, QuoteError, purchase, quote, settle};
use crate::job::Job;
use crate::trader::unix_ms;
use tokio::sync::mpsc;

/// Resumes the job of a journal.
pub(super) async fn resume(
    buyer: &Buyer,
    job: &Job,
    journal: &mut Journal,
    progress: &mpsc::Sender<Progress>,
) -> Result<Finished, Box<Ended>> {
    let before = Ended::at_once;
    let graph = quote::import(job).map_err(|e| before(QuoteError::from(e).into()))?;
    let subject = course::subject(&graph, &job.inputs);
    let subject = subject.map_err(|e| before(QuoteError::from(e).into()))?;
    if subject != journal.record().subject {
        let name = journal.record().name.clone();
        return Err(before(JournalError::Subject { name }.into()));
    }
    let last = journal.record().rounds.last().cloned();
    let settled = journal
        .record()
        .receipts
        .iter()
        .map(|receipt| receipt.body.lease)
        .collect();
    let course = course::of(buyer, job, graph, progress).journaled(journal);
    let mut course = course.map_err(before)?;
    if let Some(round) = last.filter(|_| job.limits.copies == 1)
        && let Err(error) = take_over(&mut course, &round, &settled).await
    {
        // What cannot be taken over is run again.
        tracing::warn!(%error, "nothing was taken over from the providers");
    }
    end_running(&mut course).await.map_err(before)?;
    buyer.finish(course, None).await
}

/// Fetches, signs and pays what the providers of a round finished, those not yet settled.
async fn take_over(
    course: &mut Course<'_>,
    round: &Round,
    settled: &BTreeSet<LeaseId>,
) -> Result<(), JobError> {
    let buyer = course.buyer();
    dispatch::find(buyer, &course::providers(round)).await?;
    let open = round.trades.iter().zip(&round.starts);
    let open = open.filter(|(trade, _)| !settled.contains(&trade.lease));
    let resuming = open.map(|(trade, start)| {
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
    for (trade, session) in join_all(resuming).await {
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

/// Ends whatever still runs for the job, also under an id that the journal did not come to name.
async fn end_running(course: &mut Course<'_>) -> Result<(), JobError> {
    course.skip_unrecorded();
    let buyer = course.buyer();
    let leases = buyer
        .broker()
        .job_leases(buyer.account(), course.jobs().to_vec())
        .await?;
    let running = leases
        .iter()
        .filter(|lease| lease.is_running())
        .map(|lease| lease.id);
    purchase::end(buyer, running).await;
    Ok(())
}
