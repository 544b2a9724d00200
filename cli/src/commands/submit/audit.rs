//! Audits a job of `souk submit --exact --audit`: draws requests whose answers have come, computes
//! them again on this machine, and compares the outputs to the bit.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use souk_node::buyer::AuditSpec;
use souk_node::buyer::exact_model::{CheckError, ExactModel, ExactModelError, draw_audits};
use souk_node::buyer::job::Job;
use souk_node::market::{Permille, Receipt};
use souk_node::memory::ContentId;

use super::request_files::RequestFiles;
use crate::args::SubmitArgs;
use crate::failure::{Failure, Kind, Outcome};

/// Draws the requests of a job that are computed again.
pub struct Audit {
    spec: AuditSpec,
    drawn: Vec<DrawnRequest>,
}

/// A request that is computed again.
struct DrawnRequest {
    place: usize,
    /// The ids of the outputs that came.
    outputs: BTreeSet<ContentId>,
}

/// An answer that differs from what the kernels of this machine give.
struct WrongAnswer {
    place: usize,
    input: ContentId,
    /// The outputs that these kernels do not give.
    outputs: BTreeSet<ContentId>,
}

impl Audit {
    /// Returns an audit of this share of the requests, which begins with none.
    pub fn new(share: Permille) -> Audit {
        let (spec, drawn) = (draw_audits(share), Vec::new());
        Audit { spec, drawn }
    }

    /// Draws whether a request is computed again, whose answer has come.
    pub fn draw_request(&mut self, place: usize, outputs: &BTreeSet<ContentId>) {
        let words: Vec<&[u8]> = outputs.iter().map(|id| &id.as_bytes()[..]).collect();
        if self.spec.draws(ContentId::for_content(&words.concat())) {
            let outputs = outputs.clone();
            self.drawn.push(DrawnRequest { place, outputs });
        }
    }

    /// Computes the drawn requests again, and returns how many there are. `receipts` are those of
    /// the job, with their files.
    ///
    /// # Errors
    /// If an answer is wrong, or this machine cannot compute a request.
    pub async fn compare_answers(
        &self,
        files: &RequestFiles,
        job: &Job,
        receipts: &[(&Receipt, &Path)],
    ) -> Result<usize, Failure> {
        if self.drawn.is_empty() {
            return Ok(0);
        }
        let model = ExactModel::from_job(job).map_err(refuse_model)?;
        let mut wrong = Vec::new();
        for request in &self.drawn {
            let inputs = files.request_inputs(request.place)?;
            let input = inputs.values().next().expect("the model has one input");
            let made = model.compute_request(input).await.map_err(from_check)?;
            // An answer can have more outputs: inputs and constants of the model.
            if !made.is_subset(&request.outputs) {
                let (input, outputs) = (input.id(), &request.outputs - &made);
                wrong.push(WrongAnswer {
                    place: request.place,
                    input,
                    outputs,
                });
            }
        }
        self.convict_provider(files, &wrong, receipts)?;
        Ok(self.drawn.len())
    }

    fn convict_provider(
        &self,
        files: &RequestFiles,
        wrong: &[WrongAnswer],
        receipts: &[(&Receipt, &Path)],
    ) -> Outcome {
        if wrong.is_empty() {
            return Ok(());
        }
        let is_evidence = |receipt: &Receipt| wrong.iter().any(|it| it.is_signed_in(receipt));
        let signed = receipts.iter().filter(|(receipt, _)| is_evidence(receipt));
        let signed: Vec<&Path> = signed.map(|(_, file)| *file).collect();
        let cause = format!(
            "{} of {} audited requests have other outputs than exact-1 gives: a provider lied",
            wrong.len(),
            self.drawn.len()
        );
        let hint = match signed.first() {
            Some(file) => format!("accuse it: souk dispute open {}", file.display()),
            None => "no receipt shows the wrong outputs, so nobody can be accused".to_owned(),
        };
        let names = wrong.iter().map(|it| files.name(it.place));
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        let audit = json!({
            "requests": self.drawn.len(),
            "wrong": wrong.len(),
            "wrong_requests": names,
            "receipts": signed,
        });
        Err(Failure::new(Kind::Verification, cause, hint).with([("audit", audit)]))
    }
}

impl WrongAnswer {
    /// Returns whether a provider signed in this receipt that the request gives these outputs.
    fn is_signed_in(&self, receipt: &Receipt) -> bool {
        let names = |all: &[souk_node::market::ContentId], id: &ContentId| {
            all.iter().any(|named| named.0 == *id.as_bytes())
        };
        let body = &receipt.body;
        let signs = |id: &ContentId| names(&body.outputs, id);
        names(&body.inputs, &self.input) && self.outputs.iter().any(signs)
    }
}

/// Refuses an audit that this machine cannot make, before anything is bought.
pub fn check_job(args: &SubmitArgs, job: &Job) -> Outcome {
    if args.audit.is_none() {
        return Ok(());
    }
    if !cfg!(target_os = "linux") {
        let cause = "--audit computes in a sandbox, which only Linux has";
        let hint = "leave out --audit, or submit from Linux";
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    ExactModel::from_job(job).map_err(refuse_model)?;
    Ok(())
}

/// Describes the audit of a finished job.
pub fn describe(requests: usize) -> String {
    match requests {
        0 => "audit\n  no request was drawn".to_owned(),
        1 => "audit\n  1 request computed again here: the same bits".to_owned(),
        _ => format!("audit\n  {requests} requests computed again here: the same bits"),
    }
}

/// Returns the audit of a finished job as JSON.
pub fn to_json(requests: usize) -> Value {
    json!({ "requests": requests, "wrong": 0 })
}

fn refuse_model(error: ExactModelError) -> Failure {
    Failure::new(
        Kind::Input,
        format!("--audit: {error}"),
        "leave out --audit",
    )
}

/// Returns the failure of a computation on this machine.
pub fn from_check(error: CheckError) -> Failure {
    let cause = format!("this machine cannot compute the work again: {error}");
    let hint = "a request can take 60 s of one core and 1 GiB; answers and receipts are in place, \
                and you can compare them with those of another provider (--exclude)";
    Failure::new(Kind::Unexpected, cause, hint)
}
