//! Runs the job of `souk submit` from files to files: sends the requests, and writes each answer
//! into the folder of its request. It does this in the same way for one request and for many, and
//! does not send again the requests of a resumed job whose answers are in their files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use serde_json::{Value, json};
use souk_node::buyer::job::{Job, RequestInputs};
use souk_node::buyer::{Answer, Buyer, End, JobResult, Requests, Submission, UnfinishedJob};
use tokio::sync::{Notify, mpsc};

use super::audit::{self, Audit};
use super::request_files::{AnswerFiles, RequestFiles};
use super::{
    PROGRESS_MAX, build_job, from_ended, leases_left_failure, report_progress, with_held,
    write_receipts,
};
use crate::args::{Output, SubmitArgs};
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::show::Names;
use crate::show::balance::Balances;
use crate::show::times::JobTimes;
use crate::{show, stop};
use souk_node::buyer::job_files::{JobFiles, SavedPlan};

/// Requests that wait for room in the job, and answers that wait for the disk.
const AHEAD_MAX: usize = 1;

/// A run of the remaining requests, and the facts for its report.
pub struct SubmitRun<'a> {
    args: &'a SubmitArgs,
    output: Output,
    files: &'a RequestFiles,
    /// Answers that already exist, by the indices of their requests.
    kept: BTreeMap<usize, AnswerFiles>,
    /// Indices of the remaining requests.
    left: Vec<usize>,
}

/// The facts about a job that its output shows.
pub struct PlanView {
    /// The plan as JSON; null for a resumed job.
    pub plan: Value,
    /// Planned times.
    pub planned: Option<JobTimes>,
    /// Names of the providers.
    pub names: Names,
    /// The files of the job.
    pub kept: JobFiles,
}

impl PlanView {
    /// Stores the plan with the job, together with these printed lines.
    pub fn store_plan(&self, text: impl Iterator<Item = String>) {
        let (plan, names) = (self.plan.clone(), self.names.clone());
        let text = text.collect();
        self.kept.keep_plan(&SavedPlan { plan, text, names });
    }
}

/// The outcome of a run.
pub struct RunOutcome {
    /// The job's end; `None` if the user did not wait for it.
    ended: Option<Result<JobResult, Box<UnfinishedJob>>>,
    /// Answers of this run.
    written: Vec<AnswerFiles>,
    /// Measured times; `None` if the user did not wait for the end.
    measured: Option<JobTimes>,
    /// A failure on this machine: to read a request or to write an answer.
    here: Outcome,
}

/// The facts that the report of a finished job adds to its outputs.
struct ReportFacts<'a> {
    receipts: &'a [PathBuf],
    /// Balances before and after the job.
    balances: (Balances, Balances),
    measured: Option<JobTimes>,
    shown: PlanView,
    /// How many requests were computed again, if the user wants an audit.
    audited: Option<usize>,
}

impl<'a> SubmitRun<'a> {
    /// Creates a run of the requests without stored answers.
    pub fn new(
        args: &'a SubmitArgs,
        output: Output,
        files: &'a RequestFiles,
        kept: BTreeMap<usize, AnswerFiles>,
    ) -> SubmitRun<'a> {
        let left = (0..files.request_count()).filter(|place| !kept.contains_key(place));
        SubmitRun {
            args,
            output,
            files,
            left: left.collect(),
            kept,
        }
    }

    /// Returns the job of one request, with the number of remaining requests.
    pub fn remaining_job(&self) -> Result<Job, Failure> {
        let mut job = build_job(self.args, self.files.first.clone())?;
        job.limits.requests = self.asked_now();
        Ok(job)
    }

    /// Returns the number of all requests.
    pub fn total_requests(&self) -> u32 {
        u32::try_from(self.files.request_count()).unwrap_or(u32::MAX)
    }

    fn asked_now(&self) -> u32 {
        u32::try_from(self.left.len()).unwrap_or(u32::MAX)
    }

    /// Describes the number of answered requests if there can be several.
    pub fn how_many_are_kept(&self) -> String {
        let requests = self.files.stream.as_ref();
        requests.map_or_else(String::new, |all| {
            format!(
                ": {} of {} requests are answered",
                self.kept.len(),
                all.len()
            )
        })
    }

    /// Sends the remaining requests, writes the answers, shows the progress, and stops the job if
    /// the user asks for that.
    pub async fn run<Running>(
        &self,
        buyer: &Buyer,
        shown: &PlanView,
        start: impl FnOnce(Submission) -> Running,
    ) -> RunOutcome
    where
        Running: Future<Output = Result<JobResult, Box<UnfinishedJob>>>,
    {
        let (give, inputs) = mpsc::channel(AHEAD_MAX);
        let (answers, answered) = mpsc::channel(AHEAD_MAX);
        let (progress, told) = mpsc::channel(PROGRESS_MAX);
        let cancel = Arc::<Notify>::default();
        let submission = Submission {
            requests: Requests {
                count: self.asked_now(),
                window: self.args.window,
                inputs,
            },
            answers,
            progress,
            cancel: cancel.clone(),
            warning: Arc::default(),
            is_bought: false,
        };
        let mut written = Vec::new();
        let mut ended = None;
        let mut measured = None;
        let here = {
            let running = async { ended = Some(start(submission).await) };
            let feeding = async {
                let fed = self.feed_requests(give).await;
                if fed.is_err() {
                    cancel.notify_one();
                }
                fed
            };
            let keeping = self.store_answers(answered, &mut written);
            let telling = async {
                let how = (self.output, Some(&shown.kept));
                measured = Some(report_progress(buyer, told, &shown.names, how.0, how.1).await);
            };
            let mut all = pin!(async { tokio::join!(running, feeding, keeping, telling) });
            let mut stops = stop::Requests::new();
            let mut is_stopping = false;
            let mut elsewhere = pin!(shown.kept.wait_for_cancel());
            loop {
                tokio::select! {
                    ((), fed, kept, ()) = &mut all => break fed.and(kept),
                    () = stops.next() => {}
                    () = &mut elsewhere, if !is_stopping => {}
                }
                if std::mem::replace(&mut is_stopping, true) {
                    break Ok(());
                }
                // A reader that went away is no reason to keep the leases.
                let _ = writeln!(
                    std::io::stderr(),
                    "stopping: ending the job's leases; a second signal leaves them to run out"
                );
                cancel.notify_one();
            }
        };
        RunOutcome {
            ended,
            written,
            measured,
            here,
        }
    }

    /// Reads the requests one after another, as the job takes them.
    async fn feed_requests(&self, give: mpsc::Sender<RequestInputs>) -> Outcome {
        for place in &self.left {
            if give
                .send(self.files.request_inputs(*place)?.into())
                .await
                .is_err()
            {
                break;
            }
        }
        Ok(())
    }

    /// Writes each answer into the folder of its request; ends the job if a write fails.
    async fn store_answers(
        &self,
        mut answers: mpsc::Receiver<Answer>,
        written: &mut Vec<AnswerFiles>,
    ) -> Outcome {
        while let Some(answer) = answers.recv().await {
            let place = self.left[answer.number as usize];
            let name = self.files.name(place);
            let folder = self.args.out.join(name);
            let mut files = files::write_outputs(&folder, &answer.outputs, self.args.format)?;
            let meanings = self.files.legend.output_values(&answer.outputs);
            files.extend(files::write_meanings(&folder, &meanings)?);
            let mut answer = AnswerFiles::new(files, answer.confirm_stored());
            if self.files.stream.is_some() {
                if self.output == Output::Text {
                    let (number, all) = (place + 1, self.files.request_count());
                    show::print_notice(&format!("  answer {number} of {all}: {name}"));
                }
                // The files hold the outputs.
                answer.outputs.clear();
            }
            written.push(answer);
        }
        Ok(())
    }

    /// Writes receipts and shows the results.
    pub async fn deliver_results(
        self,
        buyer: &Buyer,
        name: &str,
        came: RunOutcome,
        shown: PlanView,
        before: Balances,
    ) -> Outcome {
        let facts = self.failure_facts(name, came.written.len());
        let ended = came
            .ended
            .ok_or_else(|| leases_left_failure(name).with(facts.clone()))?;
        let (done, failed) = match ended {
            Ok(finished) => (finished, None),
            Err(ended) => {
                let was_stopped = ended.how == End::Cancelled;
                let failure = from_ended(&ended, Some(name)).with(facts.clone());
                let mut failure = with_held(failure, buyer).await;
                if self.output == Output::Text {
                    failure.cause = show::replace_accounts(&failure.cause, &shown.names);
                }
                (ended.done, Some((failure, was_stopped)))
            }
        };
        shown.kept.keep_timeline(&done.timeline);
        // This reports paid work even if the rest failed.
        let receipts = write_receipts(&self.args.out, &done)?;
        // A failure on this machine is what stopped the job.
        match (failed, came.here) {
            (Some((failure, false)), _) | (Some((failure, true)), Ok(())) => return Err(failure),
            (_, Err(failure)) => return Err(failure.with(facts)),
            (None, Ok(())) => {}
        }
        if let Some(path) = &self.args.trace {
            files::write(path, done.timeline.to_trace_json().as_bytes())?;
        }
        let audited = self.audit_answers(&came.written, &done, &receipts).await;
        let audited = audited.map_err(|failure| failure.with(facts))?;
        let after = before.read_after_job(buyer.broker(), &done).await?;
        let about = ReportFacts {
            receipts: &receipts,
            balances: (before, after),
            measured: came.measured.map(|times| {
                let paid = done.receipts.iter().map(|receipt| receipt.body.amount.0);
                times.by_devices(&done.timeline).with_price(paid.sum())
            }),
            shown,
            audited,
        };
        self.show_results(done, came.written, about);
        Ok(())
    }

    /// Audits all answers of the job, also those of an earlier process, if the user wants that.
    async fn audit_answers(
        &self,
        written: &[AnswerFiles],
        done: &JobResult,
        receipts: &[PathBuf],
    ) -> Result<Option<usize>, Failure> {
        let Some(share) = self.args.audit else {
            return Ok(None);
        };
        let kept = self.kept.iter().map(|(place, answer)| (*place, answer));
        let all = kept.chain(self.left.iter().copied().zip(written));
        let mut audit = Audit::new(share);
        all.for_each(|(place, answer)| audit.draw_request(place, &answer.output_ids));
        let job = self.remaining_job()?;
        let receipts = done
            .receipts
            .iter()
            .zip(receipts.iter().map(PathBuf::as_path));
        let receipts: Vec<_> = receipts.collect();
        audit
            .compare_answers(self.files, &job, &receipts)
            .await
            .map(Some)
    }

    /// Returns the facts that a failure adds to its cause.
    fn failure_facts(&self, name: &str, written: usize) -> Vec<(&'static str, Value)> {
        let mut facts = vec![("job", name.into())];
        if self.files.stream.is_some() {
            let answered = self.kept.len() + written;
            facts.push(("requests_answered", answered.into()));
            facts.push(("requests", self.files.request_count().into()));
        }
        facts
    }

    fn show_results(self, mut done: JobResult, written: Vec<AnswerFiles>, about: ReportFacts<'_>) {
        let (before, after) = about.balances;
        let receipts = about.receipts;
        let asked = written.len();
        let mut all = self.kept;
        all.extend(self.left.iter().copied().zip(written));
        let mut files: &[PathBuf] = &[];
        if self.files.stream.is_none() {
            let only = all.get(&0);
            files = only.map_or(files, |only| &only.files);
            done.outputs = only.map(|only| only.outputs.clone()).unwrap_or_default();
        }
        match self.output {
            Output::Json => {
                let mut job = show::job::to_json(&done, about.shown.plan, files, receipts);
                if self.files.stream.is_some() {
                    let answer = |(place, one): (&usize, &AnswerFiles)| {
                        let request = self.files.name(*place);
                        json!({ "request": request, "files": one.files })
                    };
                    let answers: Vec<Value> = all.iter().map(answer).collect();
                    job = show::with(job, [("answers", answers.into()), ("asked", asked.into())]);
                }
                if let Some(requests) = about.audited {
                    job = show::with(job, [("audit", audit::to_json(requests))]);
                }
                let rest = [
                    ("before", before.to_json()),
                    ("after", after.to_json()),
                    (
                        "times",
                        show::times::to_json(about.shown.planned, about.measured),
                    ),
                ];
                show::print_json(&show::with(job, rest));
            }
            Output::Text => {
                if self.files.stream.is_some() {
                    let (all, out) = (all.len(), self.args.out.display());
                    show::print_line(&format!("answers\n  {all} in the folders of {out}"));
                }
                let names = &about.shown.names;
                show::job::print_job(&done, files, receipts, &before, &after, names);
                if let Some(requests) = about.audited {
                    show::print_line(&audit::describe(requests));
                }
                let times = show::times::format_times(about.shown.planned, about.measured);
                times.iter().for_each(|line| show::print_line(line));
            }
        }
    }
}
