//! Runs the gateway's jobs: begins each only once under its idempotency key (by which the gateway
//! recognises a repeated request), resumes it after a crash, and publishes its events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use souk_folder::clock::unix_ms;
use souk_node::buyer::job::Job;
use souk_node::buyer::job_files::{JobFiles, SavedPlan, TimedEvent};
use souk_node::buyer::journal::JobState;
use souk_node::buyer::pinned_plan::PLANS_FOLDER;
use souk_node::buyer::value_labels::ValueLabels;
use souk_node::buyer::{
    Answer, JobEvent, JobResult, Journal, JournalError, Quote, Requests, Submission, UnfinishedJob,
    names, plan_json,
};
use souk_node::memory::Tensor;
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_blocking;
use utoipa::ToSchema;

use crate::job_body::JobBody;
use crate::job_folder::{self, JobFolder, PlanLimit, Refusal, StoredRequest};
use crate::job_slots::JobSlot;
use crate::job_view;
use crate::keys::{self, Purpose};
use crate::large_work;
use crate::output_view;
use crate::planning;
use crate::problem::{Code, Problem};
use crate::state::{SharedState, State};

/// Default percentage by which a job's plan can exceed the chosen one in cost and time.
const SLIPPAGE: f64 = 5.0;

/// Age in milliseconds up to which an accepted job begins although its gateway was away: a day.
const RESTART_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

/// Events that can wait for publication.
const PROGRESS_MAX: usize = 256;

/// The job to run: the job of a plan, given by its hash, a job, or a job that must not exceed a
/// plan.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The hash of a plan that this gateway made: the job runs by this plan, or by one within
    /// `slippage` of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// By how many per cent the job can exceed that plan in cost and time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(default = 5.0)]
    pub slippage: Option<f64>,
    /// The job; by default the one of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobBody>,
}

/// The way in which a job begins.
enum JobStart {
    /// A new job, under this plan.
    New(Box<Quote>, Journal, Value),
    /// A resumed job.
    Again(Journal),
}

/// Begins a job under a key, or finds the one already begun under it; returns its name.
///
/// # Errors
/// Fails if the job does not begin; then nothing was bought.
pub async fn submit_job(
    state: &SharedState,
    key: &str,
    asked: &JobRequest,
) -> Result<String, Problem> {
    let body = serde_json::to_vec(asked).map_err(Problem::unexpected_failure)?;
    let body_hash = blake3::hash(&body).to_string();
    let id = keys::id(state.buyer.account(), Purpose::Job, key);
    let name = job_folder::job_name(id);
    let folder = JobFolder::new(&state.jobs_folder(), &name);
    if let Some(found) = folder.read_request() {
        found.to_used_key().check_repeat(key, &body_hash)?;
        return Ok(name);
    }
    let place = state.running.reserve_place(&name)?;
    // Another request may have been a moment quicker.
    if let Some(found) = folder.read_request() {
        found.to_used_key().check_repeat(key, &body_hash)?;
        return Ok(name);
    }
    if let Some(used) = state.keys.find_key(id) {
        used.check_repeat(key, &body_hash)?;
        let detail = format!("this key was used for job {name}, which is over and not kept");
        return Err(Problem::new(
            Code::State,
            detail,
            "give each job a key of its own",
        ));
    }
    let slippage = asked.slippage.unwrap_or(SLIPPAGE);
    let held_to = asked.plan.clone();
    let request = StoredRequest {
        key: key.to_owned(),
        body_hash,
        job: asked_job(state, asked)?,
        held_to: held_to.map(|plan| PlanLimit { plan, slippage }),
        at_ms: unix_ms(),
    };
    let (own, body) = (state.clone(), request.job.clone());
    let read = move || body.to_job(|id| own.contents.read(id));
    let (job, quote) = quote_request(state, &request, read).await?;
    let journal = Journal::create(&state.jobs_folder(), id)?;
    folder.store_request(&request, &state.contents)?;
    // The keys outlive the jobs.
    if let Err(problem) = state.keys.store_key(id, &request.to_used_key()) {
        folder.remove_request()?;
        return Err(problem);
    }
    let begin = new(state, &folder, &request, &job, quote, journal);
    start_job(state, place, job, begin);
    Ok(name)
}

/// Reads the job of a request and quotes it over the current book, within the plan that it is held
/// to.
async fn quote_request(
    state: &SharedState,
    request: &StoredRequest,
    read: impl FnOnce() -> Result<(Job, ValueLabels), Problem> + Send + 'static,
) -> Result<(Job, Quote), Problem> {
    let (state, held_to) = (state.clone(), request.held_to.clone());
    large_work::run_aside(async move {
        let (job, _) = read()?;
        let quote = state.buyer.quote_job(&job).await?;
        if let Some(PlanLimit { plan, slippage }) = &held_to {
            let plans = state.folder.join(PLANS_FOLDER);
            let pinned = planning::pin_plan(&state, &job, &quote)?;
            pinned.check_against_stored(&plans, plan, *slippage)?;
        }
        Ok((job, quote))
    })
    .await
}

fn asked_job(state: &State, asked: &JobRequest) -> Result<JobBody, Problem> {
    if let Some(slippage) = asked.slippage
        && !(slippage.is_finite() && slippage >= 0.0)
    {
        return Err(Problem::malformed_input("slippage is a percentage from 0"));
    }
    match (&asked.job, &asked.plan) {
        (Some(job), _) => Ok(job.clone()),
        (None, Some(hash)) => {
            let made = state.plans.get(hash);
            let made = made.ok_or_else(|| {
                let detail = format!("no plan {hash} was made here lately");
                Problem::not_found(detail, "make one by POST /v1/plans, or give `job` beside")
            })?;
            Ok(made.body)
        }
        (None, None) => Err(Problem::malformed_input(
            "neither `plan` nor `job` is given",
        )),
    }
}

/// Returns the start of a new job, and stores its plan.
fn new(
    state: &State,
    folder: &JobFolder,
    request: &StoredRequest,
    job: &Job,
    quote: Quote,
    journal: Journal,
) -> JobStart {
    let kept = JobFiles::new(&state.jobs_folder(), journal.name());
    kept.keep_plan(&SavedPlan {
        plan: plan_json::to_json(&quote),
        text: vec![format!("plan {}", quote.hash())],
        names: names::provider_names(&quote.listings),
    });
    JobStart::New(
        Box::new(quote),
        journal,
        folder.submit_arguments(request, job),
    )
}

/// Resumes an interrupted job, or one whose process died.
///
/// # Errors
/// Fails if the job is done, runs elsewhere, or did not come through a gateway.
pub async fn resume_job(state: &SharedState, name: &str) -> Result<(), Problem> {
    let folder = JobFolder::new(&state.jobs_folder(), name);
    if let Some(request) = unbegun_request(state, name)? {
        return restart_job(state, &folder, &request).await;
    }
    let record = Journal::read(&state.jobs_folder(), name)?;
    if record.is_session() {
        let detail = format!("job {name} is a session of a language model");
        let hint = "ask its questions again: POST /v1/sessions opens another session";
        return Err(Problem::new(Code::State, detail, hint));
    }
    if record.state == JobState::Done {
        let detail = format!("job {name} is done");
        return Err(Problem::new(
            Code::State,
            detail,
            "its outputs are there: fetch them",
        ));
    }
    let Some(request) = folder.read_request() else {
        let detail = format!("job {name} was submitted by the command line");
        let hint = format!("go on with it: souk job resume {name}");
        return Err(Problem::new(Code::State, detail, &hint));
    };
    let place = state.running.reserve_place(name)?;
    let (job, _) = large_work::run_aside(async move { folder.load_job(&request) }).await?;
    let journal = Journal::open_by_name(&state.jobs_folder(), name)?;
    JobFiles::new(&state.jobs_folder(), name).clear_cancel_request();
    start_job(state, place, job, JobStart::Again(journal));
    Ok(())
}

/// Resumes all jobs that an earlier process of the gateway accepted and did not finish.
pub async fn recover_jobs(state: SharedState) {
    let entries = std::fs::read_dir(state.jobs_folder())
        .into_iter()
        .flatten()
        .flatten();
    let names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    for name in names {
        let folder = JobFolder::new(&state.jobs_folder(), &name);
        let Some(request) = folder.read_request() else {
            continue;
        };
        if folder.read_refusal().is_some() {
            continue;
        }
        let id = keys::id(state.buyer.account(), Purpose::Job, &request.key);
        if state.keys.find_key(id).is_none()
            && let Err(problem) = state.keys.store_key(id, &request.to_used_key())
        {
            tracing::warn!(
                job = name,
                problem = problem.detail,
                "the job's key was not stored"
            );
        }
        let done = match Journal::read(&state.jobs_folder(), &name) {
            Ok(record) if record.state != JobState::Running => Ok(()),
            Ok(_) if Journal::is_busy(&state.jobs_folder(), &name) => Ok(()),
            Ok(_) | Err(JournalError::Unknown { .. }) => resume_job(&state, &name).await,
            Err(error) => Err(error.into()),
        };
        if let Err(problem) = done {
            tracing::warn!(
                job = name,
                problem = problem.detail,
                "resuming the job failed"
            );
        }
    }
}

/// Returns the request of a job that was accepted and never begun, unless it was refused.
fn unbegun_request(state: &State, name: &str) -> Result<Option<StoredRequest>, Problem> {
    let folder = JobFolder::new(&state.jobs_folder(), name);
    match Journal::read(&state.jobs_folder(), name) {
        Err(JournalError::Unknown { .. }) if folder.read_refusal().is_none() => {
            Ok(folder.read_request())
        }
        Ok(_) | Err(JournalError::Unknown { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Cancels a job that was accepted and does not run, if it is not begun. Returns whether it did.
///
/// # Errors
/// Fails if the job is being begun, or its folder cannot be changed.
pub fn cancel_unbegun(state: &SharedState, name: &str) -> Result<bool, Problem> {
    let _place = state.running.reserve_place(name)?;
    let why = Refusal {
        code: "interrupted".to_owned(),
        cause: "it was cancelled before it began".to_owned(),
    };
    refuse_unbegun(state, name, &why)
}

/// Stores why a job ended, if it was accepted and never begun. Returns whether it was.
fn refuse_unbegun(state: &State, name: &str, why: &Refusal) -> Result<bool, Problem> {
    if unbegun_request(state, name)?.is_none() {
        return Ok(false);
    }
    JobFolder::new(&state.jobs_folder(), name).store_refusal(why)?;
    Ok(true)
}

/// Begins an accepted job whose process died before it bought anything.
async fn restart_job(
    state: &SharedState,
    folder: &JobFolder,
    request: &StoredRequest,
) -> Result<(), Problem> {
    let id = keys::id(state.buyer.account(), Purpose::Job, &request.key);
    let place = state.running.reserve_place(&job_folder::job_name(id))?;
    let begun = async {
        if unix_ms().saturating_sub(request.at_ms) > RESTART_MS_MAX {
            let detail = "the job was accepted more than a day before it could begin";
            let hint = "submit it under another key";
            return Err(Problem::new(Code::State, detail, hint));
        }
        let (stored, own) = (folder.clone(), request.clone());
        let read = move || stored.load_job(&own);
        let (job, quote) = quote_request(state, request, read).await?;
        let journal = Journal::create(&state.jobs_folder(), id)?;
        let begin = new(state, folder, request, &job, quote, journal);
        start_job(state, place, job, begin);
        Ok::<(), Problem>(())
    };
    let Err(problem) = begun.await else {
        return Ok(());
    };
    let code = serde_json::to_value(problem.code).unwrap_or_default();
    let code = code.as_str().unwrap_or_default().to_owned();
    let cause = problem.detail.clone();
    folder.store_refusal(&Refusal { code, cause })?;
    Err(problem)
}

/// Runs a job in its own task.
fn start_job(state: &SharedState, place: JobSlot, job: Job, begin: JobStart) {
    let state = state.clone();
    tokio::spawn(async move {
        let began = Instant::now();
        run(&state, &place, job, begin).await;
        state.figures.observe_job(began.elapsed());
        let name = place.name.clone();
        drop(place);
        tell_state(&state, &name);
    });
}

/// Publishes the state of a job.
fn tell_state(state: &State, name: &str) {
    if let Ok(view) = job_view::find_job(state, name) {
        state.hub.publish_event("jobs", &view);
    }
}

async fn run(state: &SharedState, place: &JobSlot, job: Job, begin: JobStart) {
    let name = &place.name;
    let folder = JobFolder::new(&state.jobs_folder(), name);
    let kept = JobFiles::new(&state.jobs_folder(), name);
    let (give, inputs) = mpsc::channel(1);
    let (answers, answered) = mpsc::channel(1);
    let (progress, told) = mpsc::channel(PROGRESS_MAX);
    let is_answered = match &begin {
        JobStart::New(..) => false,
        JobStart::Again(journal) => folder.has_answer(&job, &journal.fold_past()),
    };
    if !is_answered {
        // The channel is new and has room.
        let _ = give.try_send(job.inputs.clone().into());
    }
    drop(give);
    let submission = Submission {
        requests: Requests {
            count: u32::from(!is_answered),
            window: 1,
            inputs,
        },
        answers,
        progress,
        cancel: place.cancel.clone(),
        warning: Arc::default(),
        is_bought: false,
    };
    let running = async {
        match begin {
            JobStart::New(quote, journal, command) => {
                let journal = Some((journal, &command));
                state
                    .buyer
                    .submit_job(&job, *quote, journal, submission)
                    .await
            }
            JobStart::Again(journal) => {
                let inputs: BTreeSet<_> = job.inputs.values().map(Tensor::id).collect();
                state
                    .buyer
                    .resume_job(&job, journal, (&inputs, 1), submission)
                    .await
            }
        }
    };
    let keeping = store_answers(state, &folder, answered, &place.cancel);
    let telling = publish_events(state, name, &kept, told);
    let all = async { tokio::join!(running, keeping, telling).0 };
    let mut all = std::pin::pin!(all);
    let ended = tokio::select! {
        ended = &mut all => ended,
        () = kept.wait_for_cancel() => {
            place.cancel.notify_one();
            all.await
        }
    };
    let done = match ended {
        Ok(done) => done,
        Err(unfinished) => {
            note_unfinished(state, name, &unfinished);
            unfinished.done
        }
    };
    store_result(&folder, &kept, &done);
}

/// Logs why a job ended early. One that never began is refused, so that nothing begins it later.
fn note_unfinished(state: &State, name: &str, unfinished: &UnfinishedJob) {
    let (code, cause) = (unfinished.code().to_owned(), unfinished.reason_text());
    tracing::info!(job = name, why = cause, "the job did not finish");
    if let Err(problem) = refuse_unbegun(state, name, &Refusal { code, cause }) {
        let problem = problem.detail;
        tracing::error!(job = name, problem, "the job stays accepted");
    }
}

/// Writes the answer; if the write fails, cancels the job.
async fn store_answers(
    state: &SharedState,
    folder: &JobFolder,
    mut answered: mpsc::Receiver<Answer>,
    cancel: &Notify,
) {
    while let Some(answer) = answered.recv().await {
        match write(state, folder, answer.outputs.clone()).await {
            Ok(()) => drop(answer.confirm_stored()),
            Err(problem) => {
                tracing::error!(problem = problem.detail, "an answer could not be stored");
                cancel.notify_one();
            }
        }
    }
}

/// Writes outputs and describes them at the same time: one waits for the disk, the other hashes.
async fn write(
    state: &SharedState,
    folder: &JobFolder,
    outputs: BTreeMap<String, Tensor>,
) -> Result<(), Problem> {
    let (to, written) = (folder.clone(), outputs.clone());
    let writing = spawn_blocking(move || to.write_outputs(&written));
    let of = folder.clone();
    let describing = spawn_blocking(move || output_view::describe_outputs(&of, &outputs));
    let (written, views) = tokio::join!(writing, describing);
    written.map_err(Problem::unexpected_failure)??;
    if let Ok(views) = views {
        state.outputs.store_views(folder, views);
    }
    Ok(())
}

/// Stores the events of a job and publishes them.
async fn publish_events(
    state: &SharedState,
    name: &str,
    kept: &JobFiles,
    mut told: mpsc::Receiver<JobEvent>,
) {
    let topic = format!("job:{name}");
    let mut is_first = true;
    // An earlier process may have begun the job.
    let mut number = kept.read_events().len();
    while let Some(event) = told.recv().await {
        let happened = TimedEvent::new_now(event);
        kept.add(&happened);
        state.hub.publish_event(&topic, &happened.describe(number));
        number += 1;
        if std::mem::take(&mut is_first) {
            tell_state(state, name);
        }
    }
}

/// Stores the timeline and the receipts, whether or not the job succeeded.
fn store_result(folder: &JobFolder, kept: &JobFiles, done: &JobResult) {
    kept.keep_timeline(&done.timeline);
    for receipt in &done.receipts {
        let path = folder
            .out_folder()
            .join(format!("receipt-{}.json", receipt.body.lease));
        let bytes = serde_json::to_vec_pretty(receipt).unwrap_or_default();
        let written =
            std::fs::create_dir_all(folder.out_folder()).and_then(|()| std::fs::write(path, bytes));
        if let Err(error) = written {
            tracing::warn!(%error, "a receipt could not be written to the output folder");
        }
    }
}
