//! Audits a job of `souk submit --exact --audit`: draws requests whose answers have come, computes
//! them again on this machine, and compares the outputs to the bit.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use souk_node::buyer::AuditSpec;
use souk_node::buyer::accusation::Evidence;
use souk_node::buyer::exact_model::{CheckError, ExactModel, ExactModelError, draw_audits};
use souk_node::buyer::job::Job;
use souk_node::market::{Permille, Receipt, Verdict};
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
    /// The receipts in which a provider signed it, by their indices.
    receipts: Vec<usize>,
}

impl Audit {
    /// Returns an audit of this share of the requests, which begins with none.
    pub fn new(share: Permille) -> Audit {
        let (spec, drawn) = (draw_audits(share), Vec::new());
        Audit { spec, drawn }
    }

    /// Draws whether a request is computed again, whose answer has come. Each request has a draw of
    /// its own, whether or not others have the same outputs.
    pub fn draw_request(&mut self, place: usize, outputs: &BTreeSet<ContentId>) {
        let mut words = place.to_le_bytes().to_vec();
        outputs.iter().for_each(|id| words.extend(id.as_bytes()));
        if self.spec.draws(ContentId::for_content(&words)) {
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
        let signed: Vec<SignedIds> = receipts.iter().map(|(it, _)| SignedIds::new(it)).collect();
        let (mut wrong, mut unread) = (Vec::new(), None);
        for request in &self.drawn {
            let (input, made) = match compute(&model, files, request.place).await {
                Ok(computed) => computed,
                Err(failure) => {
                    unread.get_or_insert(failure);
                    continue;
                }
            };
            // An answer can have more outputs: the input and constants of the model. No provider
            // signs those.
            let mut strange = &request.outputs - &made;
            strange.remove(&input);
            let receipts: Vec<usize> = (0..signed.len())
                .filter(|at| signed[*at].names(&input, &strange))
                .collect();
            if !made.is_subset(&request.outputs) || !receipts.is_empty() {
                let place = request.place;
                wrong.push(WrongAnswer { place, receipts });
            }
        }
        if !wrong.is_empty() {
            return Err(self.report_lie(files, job, (&wrong, receipts)).await);
        }
        unread.map_or(Ok(self.drawn.len()), Err)
    }

    /// Describes the wrong answers, and with which receipt validators convict the provider.
    async fn report_lie(
        &self,
        files: &RequestFiles,
        job: &Job,
        (wrong, receipts): (&[WrongAnswer], &[(&Receipt, &Path)]),
    ) -> Failure {
        let named: BTreeSet<usize> = wrong.iter().flat_map(|it| it.receipts.clone()).collect();
        let (mut convicting, mut reason) = (Vec::new(), None);
        for (receipt, file) in named.iter().map(|at| receipts[*at]) {
            match judge_receipt(files, job, receipt).await {
                None => convicting.push(file),
                Some(why) => reason = Some(why),
            }
        }
        let cause = format!(
            "{} of {} audited requests have other outputs than exact-1 gives: a provider lied",
            wrong.len(),
            self.drawn.len()
        );
        let hint = match (convicting.first(), reason) {
            (Some(file), _) => format!("accuse it: souk dispute open {}", file.display()),
            (None, Some(why)) => {
                format!("do not use the answers, and leave it out (--exclude); {why}")
            }
            (None, None) => "do not use the answers, and leave the provider out (--exclude); no \
                             receipt shows the wrong outputs"
                .to_owned(),
        };
        let names = wrong.iter().map(|it| files.name(it.place));
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        let audit = json!({
            "requests": self.drawn.len(),
            "wrong": wrong.len(),
            "wrong_requests": names,
            "receipts": convicting,
        });
        Failure::new(Kind::Verification, cause, hint).with([("audit", audit)])
    }
}

/// Computes a request again. Returns the id of its input and those of its outputs.
async fn compute(
    model: &ExactModel,
    files: &RequestFiles,
    place: usize,
) -> Result<(ContentId, BTreeSet<ContentId>), Failure> {
    let inputs = files.request_inputs(place)?;
    if !files.is_unchanged(place, &inputs) {
        let cause = match files.name(place) {
            "" => "the input has changed since the job began".to_owned(),
            name => format!("the input of request {name} has changed since the job began"),
        };
        let hint = "nothing is known about its outputs; keep inputs until the command ends";
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    let input = inputs.get(model.input());
    let input = input.expect("the job had this input");
    let made = model.compute_request(input).await.map_err(from_check)?;
    Ok((input.id(), made))
}

/// Returns why validators would not convict the provider of a receipt; none if they would.
async fn judge_receipt(files: &RequestFiles, job: &Job, receipt: &Receipt) -> Option<String> {
    let evidence = match Evidence::gather(job, receipt, files.all_inputs()) {
        Ok(evidence) => evidence,
        Err(error) => return Some(format!("it cannot be accused: {error}")),
    };
    match evidence.judge_receipt(receipt).await {
        Ok(Some(Verdict::Guilty)) => None,
        Ok(_) => Some(
            "it cannot be accused: a receipt does not say which output belongs to which request, \
             and all outputs in it are right ones"
                .to_owned(),
        ),
        Err(error) => Some(format!(
            "it is not known whether it can be accused: {error}"
        )),
    }
}

/// The ids that a receipt names.
struct SignedIds {
    inputs: BTreeSet<ContentId>,
    outputs: BTreeSet<ContentId>,
}

impl SignedIds {
    fn new(receipt: &Receipt) -> SignedIds {
        let ids = |all: &[souk_node::market::ContentId]| -> BTreeSet<ContentId> {
            all.iter().map(|id| ContentId::from_bytes(id.0)).collect()
        };
        SignedIds {
            inputs: ids(&receipt.body.inputs),
            outputs: ids(&receipt.body.outputs),
        }
    }

    /// Returns whether the provider signed this input, and one of these outputs.
    fn names(&self, input: &ContentId, outputs: &BTreeSet<ContentId>) -> bool {
        self.inputs.contains(input) && !self.outputs.is_disjoint(outputs)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A liar that gives one false answer to all requests must not escape by it.
    #[test]
    fn requests_with_equal_outputs_are_drawn_one_by_one() {
        let outputs = BTreeSet::from([ContentId::for_content(b"one answer for all")]);
        let mut audit = Audit::new(Permille(50));
        (0..2_000).for_each(|place| audit.draw_request(place, &outputs));
        let drawn = audit.drawn.len();
        assert!((30..250).contains(&drawn), "{drawn} of 2,000 at 5 %");
    }
}
