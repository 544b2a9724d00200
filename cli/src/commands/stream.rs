//! `souk submit --stream`: one model, many requests from files, answers to files in their order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use souk_node::buyer::{Answer, Finished, Requests};
use souk_node::memory::Tensor;
use tokio::sync::mpsc;

use super::job::{self, Stopped};
use super::market::Balances;
use crate::args::{Output, SubmitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::files::{self, Request};
use crate::folder::join_within;
use crate::show;

/// Requests that were read and wait for room on the line, and answers that wait to be written.
const AHEAD_MAX: usize = 1;

/// An answer in files.
struct Written {
    request: String,
    files: Vec<PathBuf>,
}

/// Buys a line of providers and sends it each request.
pub async fn submit(folder: &Path, output: Output, args: &SubmitArgs, from: &str) -> Outcome {
    let requests = files::requests(from)?;
    let common = files::read_inputs(&args.job.input)?;
    let first = check(&requests, &common)?;
    let mut wanted = job::read(&args.job)?;
    wanted.inputs = first;
    wanted.limits.requests = u32::try_from(requests.len()).map_err(|_| too_many())?;
    // Before anything is paid for: outputs that cannot be kept are not worth buying.
    files::prepare(&args.out)?;
    let buyer = join_within(folder, job::traffic(args)).await?;
    let quote = buyer.quote(&wanted).await.map_err(job::from_quote)?;
    job::hold_to_plan(folder, &buyer, &wanted, &quote, args)?;
    let (plan, names) = (show::plan::to_json(&quote), show::names(&quote));
    let before = Balances::of(buyer.broker(), job::parties(&buyer, &quote)).await?;
    if output == Output::Text {
        show::plan::print(&quote);
        show::say(&format!("  {} requests", requests.len()));
    }
    let (give, inputs) = mpsc::channel(AHEAD_MAX);
    let (tell, answers) = mpsc::channel(AHEAD_MAX);
    let stream = Requests {
        count: wanted.limits.requests,
        window: args.window,
        inputs,
    };
    let running = job::watched(&buyer, &names, output, |progress| {
        buyer.stream(&wanted, quote, stream, tell, progress)
    });
    let feeding = feed(&requests, &common, give);
    let keeping = keep(args, &requests, output, answers);
    let (ended, fed, (written, kept)) = tokio::join!(running, feeding, keeping);
    let facts = [
        ("answered", written.len().into()),
        ("requests", requests.len().into()),
    ];
    let finished = match ended {
        Ok(finished) => finished,
        Err(Stopped::Ended(ended)) => return Err(job::from_ended(&ended).with(facts)),
        Err(Stopped::Interrupted(failure)) => return Err(failure.with(facts)),
    };
    let receipts = job::write_receipts(&args.out, &finished)?;
    // What went wrong on this machine ended the stream well: it is told after what was paid.
    fed.and(kept).map_err(|failure| failure.with(facts))?;
    if let Some(path) = &args.trace {
        files::write(path, finished.timeline.to_trace_json().as_bytes())?;
    }
    let after = before.after(buyer.broker(), &finished).await?;
    match output {
        Output::Json => {
            let balances = [("before", before.to_json()), ("after", after.to_json())];
            let all = to_json(&finished, plan, &written, &receipts);
            show::json(&show::with(all, balances));
        }
        Output::Text => show::job::print(&finished, &[], &receipts, &before, &after),
    }
    Ok(())
}

/// Reads every request once, before anything is paid for: all must be what the first is.
fn check(
    requests: &[Request],
    common: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Tensor>, Failure> {
    let shapes = |inputs: &BTreeMap<String, Tensor>| -> BTreeMap<String, String> {
        let facts = |tensor: &Tensor| format!("{} {}", tensor.dtype(), tensor.shape());
        inputs
            .iter()
            .map(|(name, tensor)| (name.clone(), facts(tensor)))
            .collect()
    };
    let first = requests
        .first()
        .expect("a stream has a request")
        .read(common)?;
    let expected = shapes(&first);
    for request in &requests[1..] {
        let found = shapes(&request.read(common)?);
        if found != expected {
            let cause = format!(
                "{} holds {found:?}, the first request {expected:?}",
                request.path()
            );
            let hint = "give requests of one shape; submit the others by themselves";
            return Err(Failure::new(Kind::Input, cause, hint));
        }
    }
    Ok(first)
}

/// Reads request after request, as the line has room.
async fn feed(
    requests: &[Request],
    common: &BTreeMap<String, Tensor>,
    give: mpsc::Sender<BTreeMap<String, Tensor>>,
) -> Outcome {
    for request in requests {
        let inputs = request.read(common)?;
        if give.send(inputs).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes each answer into a folder of its request's name; at the first that cannot be written the
/// stream ends.
async fn keep(
    args: &SubmitArgs,
    requests: &[Request],
    output: Output,
    mut answers: mpsc::Receiver<Answer>,
) -> (Vec<Written>, Outcome) {
    let mut written = Vec::new();
    while let Some(Answer { number, outputs }) = answers.recv().await {
        let request = requests[number as usize].stem.clone();
        match files::write_outputs(&args.out.join(&request), &outputs, args.format) {
            Ok(files) => {
                if output == Output::Text {
                    let (number, all) = (number + 1, requests.len());
                    show::say(&format!("  answer {number} of {all}: {request}"));
                }
                written.push(Written { request, files });
            }
            Err(failure) => return (written, Err(failure)),
        }
    }
    (written, Ok(()))
}

fn to_json(finished: &Finished, plan: Value, written: &[Written], receipts: &[PathBuf]) -> Value {
    let answer = |one: &Written| json!({ "request": one.request, "files": one.files });
    let answers: Vec<Value> = written.iter().map(answer).collect();
    let all = show::job::to_json(finished, plan, &[], receipts);
    show::with(all, [("answers", answers.into())])
}

fn too_many() -> Failure {
    let cause = "the folder holds more requests than can be counted";
    Failure::new(Kind::Input, cause, "split it")
}
