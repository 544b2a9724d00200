//! Runs the job of `souk submit` from files to files: reads the requests, sends them, and writes
//! each answer into the folder of its request. It does this in the same way for one request and for
//! many, and does not send again the requests of a resumed job whose answers are in their files.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use serde_json::{Value, json};
use souk_node::buyer::job::{Job, RequestInputs};
use souk_node::buyer::value_labels::ValueLabels;
use souk_node::buyer::{
    Answer, Buyer, End, JobResult, Journal, Quote, Requests, Submission, UnfinishedJob, request_of,
};
use souk_node::memory::{ContentId, DType, Tensor};
use tokio::sync::{Notify, mpsc};

use super::{
    PROGRESS_MAX, build_job, from_ended, from_quote, leases_left_failure, report_progress,
    with_held, write_receipts,
};
use crate::args::{Output, SubmitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::files::{self, Request};
use crate::show::Names;
use crate::show::balance::Balances;
use crate::show::times::JobTimes;
use crate::{show, stop};
use souk_node::buyer::job_files::{JobFiles, SavedPlan};

/// Requests that wait for room in the job, and answers that wait for the disk.
const AHEAD_MAX: usize = 1;

/// The requests of a job.
pub struct RequestFiles {
    /// Requests in separate files; `None` for a single request with the inputs of `-i`.
    stream: Option<Vec<Request>>,
    /// Id of each request.
    request_ids: Vec<ContentId>,
    /// Inputs that all requests share.
    common: BTreeMap<String, Tensor>,
    /// Inputs of the first request.
    first: BTreeMap<String, Tensor>,
    /// Ids of the inputs of all requests.
    input_ids: BTreeSet<ContentId>,
    /// Labels that map texts to numbers.
    legend: ValueLabels,
}

/// An answer in files.
#[derive(Clone)]
pub struct AnswerFiles {
    files: Vec<PathBuf>,
    outputs: BTreeMap<String, Tensor>,
}

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
}

impl RequestFiles {
    /// Reads every request once before any payment. All must have the shapes of the first.
    pub fn read(args: &SubmitArgs) -> Result<RequestFiles, Failure> {
        let stream = args
            .stream
            .as_deref()
            .map(files::list_requests)
            .transpose()?;
        let legend = ValueLabels::from_model(files::read(&args.job.model)?);
        let common = files::read_inputs(&args.job.input, &legend)?;
        let mut files = RequestFiles {
            legend,
            stream,
            request_ids: Vec::new(),
            first: common.clone(),
            common,
            input_ids: BTreeSet::new(),
        };
        for place in 0..files.request_count() {
            let inputs = files.request_inputs(place)?;
            if place == 0 {
                files.first = inputs.clone();
            }
            let (found, expected) = (input_shapes(&inputs), input_shapes(&files.first));
            if found != expected {
                let requests = files.stream.as_ref();
                let path = requests.map(|all| all[place].path().to_string());
                let path = path.unwrap_or_default();
                let cause = format!("{path} holds {found:?}, the first request {expected:?}");
                let hint = "give requests of one shape; submit the others by themselves";
                return Err(Failure::new(Kind::Input, cause, hint));
            }
            files.request_ids.push(request_of(&inputs));
            files.input_ids.extend(inputs.values().map(Tensor::id));
        }
        Ok(files)
    }

    /// Checks each request after the first, which the quote is for: its indices must not lie past
    /// an end.
    pub fn check_indices(&self, quote: &Quote) -> Outcome {
        let may_index = |it: &Tensor| matches!(it.dtype(), DType::I32 | DType::I64);
        if !self.first.values().any(may_index) {
            return Ok(());
        }
        for place in 1..self.request_count() {
            let checked = quote.check_request(&self.request_inputs(place)?);
            checked.map_err(from_quote)?;
        }
        Ok(())
    }

    fn request_count(&self) -> usize {
        self.stream.as_ref().map_or(1, Vec::len)
    }

    /// Returns the inputs of a request.
    fn request_inputs(&self, place: usize) -> Result<BTreeMap<String, Tensor>, Failure> {
        let mut inputs = match &self.stream {
            None => self.common.clone(),
            Some(requests) => requests[place].read(&self.common, &self.legend)?,
        };
        files::prepare_texts(&mut inputs, &self.legend)?;
        Ok(inputs)
    }

    /// Returns the name of a request, which is empty for a single one.
    fn name(&self, place: usize) -> &str {
        let requests = self.stream.as_ref();
        requests.map_or("", |requests| &requests[place].stem)
    }

    /// Returns the ids of the inputs of all requests.
    pub fn input_ids(&self) -> &BTreeSet<ContentId> {
        &self.input_ids
    }

    /// Describes the number of requests if there can be several.
    pub fn how_many(&self) -> String {
        let requests = self.stream.as_ref();
        requests.map_or_else(String::new, |all| format!(", {} requests", all.len()))
    }

    /// Returns the answers that a journal names and whose files hold them, by the indices of their
    /// requests.
    pub fn find_stored_answers(
        &self,
        args: &SubmitArgs,
        journal: &Journal,
    ) -> BTreeMap<usize, AnswerFiles> {
        let answered = journal.fold_past().answered;
        let kept = |(place, asked): (usize, &ContentId)| {
            let outputs = answered.get(asked)?.outputs.iter().cloned().collect();
            let folder = args.out.join(self.name(place));
            let (files, outputs) = files::find_matching_outputs(&folder, &outputs, args.format)?;
            Some((place, AnswerFiles { files, outputs }))
        };
        self.request_ids
            .iter()
            .enumerate()
            .filter_map(kept)
            .collect()
    }
}

fn input_shapes(inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, String> {
    let facts = |tensor: &Tensor| format!("{} {}", tensor.dtype(), tensor.shape());
    inputs
        .iter()
        .map(|(name, tensor)| (name.clone(), facts(tensor)))
        .collect()
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
            let mut outputs = answer.confirm_stored();
            if self.files.stream.is_some() {
                if self.output == Output::Text {
                    let (number, all) = (place + 1, self.files.request_count());
                    show::print_notice(&format!("  answer {number} of {all}: {name}"));
                }
                // The files hold the outputs.
                outputs.clear();
            }
            written.push(AnswerFiles { files, outputs });
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
        let after = before.read_after_job(buyer.broker(), &done).await?;
        let about = ReportFacts {
            receipts: &receipts,
            balances: (before, after),
            measured: came.measured.map(|times| {
                let paid = done.receipts.iter().map(|receipt| receipt.body.amount.0);
                times.by_devices(&done.timeline).with_price(paid.sum())
            }),
            shown,
        };
        self.show_results(done, came.written, about);
        Ok(())
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
                let times = show::times::format_times(about.shown.planned, about.measured);
                times.iter().for_each(|line| show::print_line(line));
            }
        }
    }
}
