//! `souk submit --stream`: one model, many requests from files, answers to files in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use souk_node::buyer::job::Job;
use souk_node::buyer::journal::{State, request_id};
use souk_node::buyer::{Answer, Buyer, Finished, Journal, Progress, Quote, Requests};
use souk_node::market::AccountKey;
use souk_node::memory::{ContentId, Tensor};
use tokio::sync::mpsc;

use crate::args::{Output, SubmitArgs};
use crate::commands::job::{self, Stopped};
use crate::failure::{Failure, Kind, Outcome};
use crate::files::{self, Request};
use crate::folder::join_within;
use crate::show;
use crate::show::balance::Balances;

/// Requests that were read and wait for room on the line, and answers that wait to be written.
const AHEAD_MAX: usize = 1;

/// An answer in files.
#[derive(Clone)]
struct Written {
    request: String,
    files: Vec<PathBuf>,
}

/// A stream as files.
struct Files {
    requests: Vec<Request>,
    /// What each request asks.
    asked: Vec<ContentId>,
    /// Inputs that are the same for all.
    common: BTreeMap<String, Tensor>,
    /// The inputs of the first request.
    first: BTreeMap<String, Tensor>,
    /// The inputs of all.
    given: BTreeSet<ContentId>,
}

/// The requests that are asked now, and what the report says of them.
struct Asking<'a> {
    args: &'a SubmitArgs,
    output: Output,
    files: &'a Files,
    /// The places of those that are asked among all.
    left: Vec<usize>,
}

/// What came of it.
struct Came {
    finished: Finished,
    /// The answers that came now.
    written: Vec<Written>,
    /// What went wrong on this machine.
    here: Outcome,
}

/// Buys a line of providers and sends it each request.
pub async fn submit(folder: &Path, output: Output, args: &SubmitArgs, from: &str) -> Outcome {
    let files = Files::read(args, from)?;
    let left = (0..files.requests.len()).collect();
    let asking = Asking {
        args,
        output,
        files: &files,
        left,
    };
    let wanted = asking.job()?;
    // Before anything is paid for: outputs that cannot be kept are not worth buying.
    files::prepare(&args.out)?;
    let buyer = join_within(folder, job::traffic(args)).await?;
    let quote = buyer.quote(&wanted).await.map_err(job::from_quote)?;
    job::hold_to_plan(folder, &buyer, &wanted, &quote, args)?;
    let mut journal = journal(folder, &buyer, (&wanted, &quote), args)?;
    let (plan, names) = (show::plan::to_json(&quote), show::names(&quote));
    let before = Balances::of(buyer.broker(), job::parties(&buyer, &quote)).await?;
    if output == Output::Text {
        show::plan::print(&quote);
        let (name, all) = (&journal.record().name, files.requests.len());
        show::say(&format!("  job {name}, {all} requests"));
    }
    let kept = Some(&mut journal);
    let running = asking.run(&buyer, &names, |line, progress| {
        buyer.stream(&wanted, quote, kept, line, progress)
    });
    let ended = running.await;
    let came = asking.conclude(&mut journal, ended)?;
    asking
        .deliver(&buyer, (came, BTreeMap::new()), plan, before)
        .await?;
    job::over(&mut journal, State::Done);
    Ok(())
}

/// Goes on with a stream: what was answered and is in its files is not asked again.
pub async fn resume(
    folder: &Path,
    output: Output,
    args: &SubmitArgs,
    (from, mut journal): (&str, Journal),
) -> Outcome {
    let files = Files::read(args, from)?;
    files::prepare(&args.out)?;
    let kept = files.kept(args, &journal)?;
    let left = (0..files.requests.len()).filter(|place| !kept.contains_key(place));
    let asking = Asking {
        args,
        output,
        files: &files,
        left: left.collect(),
    };
    let wanted = asking.job()?;
    let buyer = join_within(folder, job::traffic(args)).await?;
    let before = Balances::of(buyer.broker(), vec![buyer.account()]).await?;
    if output == Output::Text {
        let (name, all) = (&journal.record().name, files.requests.len());
        let kept = kept.len();
        show::say(&format!(
            "resuming job {name}: {kept} of {all} requests are answered"
        ));
    }
    let (opened, names) = (&mut journal, BTreeMap::new());
    let running = asking.run(&buyer, &names, |line, progress| {
        buyer.resume_stream(&wanted, opened, line, &files.given, progress)
    });
    let ended = running.await;
    let came = asking.conclude(&mut journal, ended)?;
    asking
        .deliver(&buyer, (came, kept), Value::Null, before)
        .await?;
    job::over(&mut journal, State::Done);
    Ok(())
}

fn journal(
    folder: &Path,
    buyer: &Buyer,
    (wanted, quote): (&Job, &Quote),
    args: &SubmitArgs,
) -> Result<Journal, Failure> {
    let (jobs, command) = job::remembered(folder, args);
    let journal = buyer.journal_stream(&jobs, wanted, quote, command);
    journal.map_err(|error| job::from_job(&error))
}

impl Files {
    /// Reads every request once, before anything is paid for: all must be what the first is.
    fn read(args: &SubmitArgs, from: &str) -> Result<Files, Failure> {
        let requests = files::requests(from)?;
        let common = files::read_inputs(&args.job.input)?;
        let first = requests.first().expect("a stream has a request");
        let first = first.read(&common)?;
        let expected = shapes(&first);
        let (mut asked, mut given) = (Vec::with_capacity(requests.len()), BTreeSet::new());
        for request in &requests {
            let inputs = request.read(&common)?;
            let found = shapes(&inputs);
            if found != expected {
                let cause = format!(
                    "{} holds {found:?}, the first request {expected:?}",
                    request.path()
                );
                let hint = "give requests of one shape; submit the others by themselves";
                return Err(Failure::new(Kind::Input, cause, hint));
            }
            asked.push(request_id(&inputs));
            given.extend(inputs.values().map(Tensor::id));
        }
        Ok(Files {
            requests,
            asked,
            common,
            first,
            given,
        })
    }

    /// The requests whose answers a journal names and whose files hold them, by their places.
    fn kept(
        &self,
        args: &SubmitArgs,
        journal: &Journal,
    ) -> Result<BTreeMap<usize, Written>, Failure> {
        let noted = journal.answers().map_err(job::unreadable)?.into_iter();
        let noted: BTreeMap<_, _> = noted.map(|one| (one.request, one.outputs)).collect();
        let kept = |(place, asked): (usize, &ContentId)| {
            let request = self.requests[place].stem.clone();
            let folder = args.out.join(&request);
            let files = files::holds(&folder, noted.get(asked)?, args.format)?;
            Some((place, Written { request, files }))
        };
        Ok(self.asked.iter().enumerate().filter_map(kept).collect())
    }
}

fn shapes(inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, String> {
    let facts = |tensor: &Tensor| format!("{} {}", tensor.dtype(), tensor.shape());
    inputs
        .iter()
        .map(|(name, tensor)| (name.clone(), facts(tensor)))
        .collect()
}

impl Asking<'_> {
    /// The job of one request, and how many there are.
    fn job(&self) -> Result<Job, Failure> {
        let mut wanted = job::wanted(self.args)?;
        wanted.inputs = self.files.first.clone();
        wanted.limits.requests = u32::try_from(self.left.len()).map_err(|_| too_many())?;
        Ok(wanted)
    }

    /// Sends the requests that are left, and writes the answers.
    async fn run<Running>(
        &self,
        buyer: &Buyer,
        names: &BTreeMap<AccountKey, String>,
        start: impl FnOnce((Requests, mpsc::Sender<Answer>), mpsc::Sender<Progress>) -> Running,
    ) -> (Result<Finished, Stopped>, Vec<Written>, Outcome)
    where
        Running: Future<Output = Result<Finished, Box<souk_node::buyer::Ended>>>,
    {
        let (give, inputs) = mpsc::channel(AHEAD_MAX);
        let (tell, answers) = mpsc::channel(AHEAD_MAX);
        let stream = Requests {
            count: u32::try_from(self.left.len()).unwrap_or(u32::MAX),
            window: self.args.window,
            inputs,
        };
        let running = job::watched(buyer, names, self.output, |progress| {
            start((stream, tell), progress)
        });
        let (ended, fed, (written, kept)) =
            tokio::join!(running, self.feed(give), self.keep(answers));
        (ended, written, fed.and(kept))
    }

    /// Writes into the journal how it ended, if it did not end well.
    fn conclude(
        &self,
        journal: &mut Journal,
        (ended, written, here): (Result<Finished, Stopped>, Vec<Written>, Outcome),
    ) -> Result<Came, Failure> {
        let all = self.files.requests.len();
        let answered = all - self.left.len() + written.len();
        let facts = [("answered", answered.into()), ("requests", all.into())];
        let finished = job::conclude(journal, ended).map_err(|failure| failure.with(facts.clone()));
        let here = here.map_err(|failure| failure.with(facts));
        if here.is_err() {
            // It ended well for the market; what was not written can be asked again.
            job::over(journal, State::Interrupted);
        }
        Ok(Came {
            finished: finished?,
            written,
            here,
        })
    }

    /// Writes receipts, and shows what was done; `kept` was answered before.
    async fn deliver(
        &self,
        buyer: &Buyer,
        (came, kept): (Came, BTreeMap<usize, Written>),
        plan: Value,
        before: Balances,
    ) -> Outcome {
        let Came {
            finished,
            written,
            here,
        } = came;
        let receipts = job::write_receipts(&self.args.out, &finished)?;
        // What went wrong on this machine ended the stream well: it is told after what was paid.
        here?;
        if let Some(path) = &self.args.trace {
            files::write(path, finished.timeline.to_trace_json().as_bytes())?;
        }
        let after = before.after(buyer.broker(), &finished).await?;
        let asked = written.len();
        let mut all = kept;
        all.extend(self.left.iter().copied().zip(written));
        match self.output {
            Output::Json => {
                let balances = [("before", before.to_json()), ("after", after.to_json())];
                let answer = |one: &Written| json!({ "request": one.request, "files": one.files });
                let answers: Vec<Value> = all.values().map(answer).collect();
                let facts = [("answers", answers.into()), ("asked", asked.into())];
                let job = show::job::to_json(&finished, plan, &[], &receipts);
                show::json(&show::with(show::with(job, facts), balances));
            }
            Output::Text => {
                let (all, out) = (all.len(), self.args.out.display());
                show::say(&format!("answers\n  {all} in the folders of {out}"));
                show::job::print(&finished, &[], &receipts, &before, &after);
            }
        }
        Ok(())
    }

    /// Reads request after request, as the line has room.
    async fn feed(&self, give: mpsc::Sender<BTreeMap<String, Tensor>>) -> Outcome {
        for place in &self.left {
            let inputs = self.files.requests[*place].read(&self.files.common)?;
            if give.send(inputs).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Writes each answer into a folder of its request's name; at the first that cannot be written
    /// the stream ends.
    async fn keep(&self, mut answers: mpsc::Receiver<Answer>) -> (Vec<Written>, Outcome) {
        let mut written = Vec::new();
        while let Some(Answer { number, outputs }) = answers.recv().await {
            let place = self.left[number as usize];
            let request = self.files.requests[place].stem.clone();
            let folder = self.args.out.join(&request);
            match files::write_outputs(&folder, &outputs, self.args.format) {
                Ok(files) => {
                    if self.output == Output::Text {
                        let (number, all) = (place + 1, self.files.requests.len());
                        show::say(&format!("  answer {number} of {all}: {request}"));
                    }
                    written.push(Written { request, files });
                }
                Err(failure) => return (written, Err(failure)),
            }
        }
        (written, Ok(()))
    }
}

fn too_many() -> Failure {
    let cause = "the folder holds more requests than can be counted";
    Failure::new(Kind::Input, cause, "split it")
}
