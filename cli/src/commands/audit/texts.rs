//! `souk audit run` and `souk audit verify`: checks whether the answers that a provider sold came
//! from the model that it named. For this, a reference copy of the model reads the kept transcripts
//! on this machine; `verify` does so with the evidence of an earlier audit.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use souk_folder::market_file::MarketFile;
use souk_node::buyer::audit_results::{
    AuditCore, AuditEvidence, AuditResult, EVIDENCE_BYTES_MAX, TokenReading, Verdict, save_audit,
};
use souk_node::buyer::transcripts::{TabTranscript, read_transcripts};
use souk_node::market::AccountKey;
use souk_texts::AuditReference;
use tokio::runtime::Handle;

use super::results::print_audits;
use crate::args::{AuditRunArgs, Output, ReferenceArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::files;
use crate::folder::from_config;
use crate::show;

/// What was read of each exchange of each tab.
type TabReadings = Vec<Vec<Option<Vec<TokenReading>>>>;

/// Audits each provider of a model, with the transcripts that `souk openai --keep-transcripts` left
/// in a folder.
pub async fn run(folder: &Path, output: Output, args: &AuditRunArgs) -> Outcome {
    MarketFile::read_nearest(folder).map_err(from_config)?;
    let (mut tabs, damaged) = read_transcripts(folder, &args.model).map_err(|error| {
        let cause = format!(
            "the transcripts of {} are not read: {error}",
            folder.display()
        );
        Failure::new(
            Kind::State,
            cause,
            "check the permissions of buyer/transcripts",
        )
    })?;
    if damaged > 0 {
        let files = show::format_count(show::to_u64(damaged), "file");
        show::print_notice(&format!("{files} of buyer/transcripts cannot be read"));
    }
    if let Some(last) = args.last {
        tabs.drain(..tabs.len().saturating_sub(last as usize));
    }
    if tabs.is_empty() {
        let cause = format!(
            "there is no transcript of {} in buyer/transcripts",
            args.model
        );
        let hint = "start `souk openai --keep-transcripts 100`, and ask for the model";
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    let mut by_provider: BTreeMap<AccountKey, Vec<TabTranscript>> = BTreeMap::new();
    for tab in tabs {
        by_provider.entry(tab.provider).or_default().push(tab);
    }
    let mut reference = open_reference(&args.reference).await?;
    let mut all = Vec::new();
    for (provider, tabs) in by_provider {
        let (audited, back) = audit(reference, args.model.clone(), provider, tabs).await?;
        reference = back;
        all.push(audited);
    }
    // If nobody fits, the reference is the likelier cause.
    let is_reference_right = args.leave || !all.iter().all(|it| does_not_fit(&it.result));
    let mut results = Vec::new();
    for mut audited in all {
        audited.result.leaves = is_reference_right;
        let saved = save_audit(folder, audited).map_err(|error| {
            let cause = format!("the audit is not written to buyer/audits: {error}");
            Failure::new(Kind::State, cause, "give a --dir that you can write")
        })?;
        results.push(saved);
    }
    match output {
        Output::Json => show::print_json(&results),
        Output::Text => print_results(&results, reference.repetition_penalty()),
    }
    Ok(())
}

fn does_not_fit(result: &AuditResult) -> bool {
    result.tally.verdict == Verdict::DoesNotFit
}

/// Checks the evidence of an audit, and makes the audit again over the texts that the provider
/// signed.
pub async fn verify(output: Output, file: &Path, args: &ReferenceArgs) -> Outcome {
    let size = std::fs::metadata(file).map_or(0, |it| it.len());
    let evidence = match size <= EVIDENCE_BYTES_MAX {
        true => AuditEvidence::read(&files::read(file)?),
        false => None,
    };
    let Some(evidence) = evidence else {
        let cause = format!("{} is no evidence of an audit", file.display());
        let hint = "give a file of buyer/audits/evidence that `souk audit run` wrote";
        return Err(Failure::new(Kind::Input, cause, hint));
    };
    let stated = evidence.result;
    let reference = open_reference(args).await?;
    if reference.id() != stated.reference {
        let cause = format!(
            "the evidence is of the reference {}, and this one is {}",
            stated.reference,
            reference.id()
        );
        let hint = "give the same weights, tokeniser and chat template";
        return Err(Failure::new(Kind::Verification, cause, hint));
    }
    let all = evidence.tabs.len();
    let is_of_it = |tab: &TabTranscript| {
        tab.provider == stated.provider && tab.model == stated.model && tab.check_signed().is_ok()
    };
    let mut tabs: Vec<TabTranscript> = evidence.tabs.into_iter().filter(is_of_it).collect();
    let signed = tabs.len();
    let unnamed: usize = tabs.iter_mut().map(TabTranscript::drop_unnamed).sum();
    if unnamed > 0 {
        let answers = show::format_count(show::to_u64(unnamed), "answer");
        show::print_notice(&format!("{answers} left out, which no receipt names"));
    }
    let (model, provider) = (stated.model.clone(), stated.provider);
    let (again, _) = audit(reference, model, provider, tabs).await?;
    let found = again.result;
    if found.tally.verdict != stated.tally.verdict {
        let cause = format!(
            "the evidence states \"{}\", and the {signed} of {all} tabs that the provider signed \
             give \"{}\"",
            show::text_offers::describe_tally(&stated),
            show::text_offers::describe_tally(&found)
        );
        let hint = "count on nothing of it but what is signed";
        return Err(Failure::new(Kind::Verification, cause, hint));
    }
    let facts = json!({
        "valid": true, "signed_tabs": signed, "tabs": all, "provider": found.provider,
        "model": found.model, "result": found,
    });
    let text = format!(
        "valid: {} of {} at {}; {signed} of {all} tabs are signed by both sides. The signatures \
         do not cover the requests, so you have the buyer's word for those",
        show::text_offers::describe_tally(&found),
        found.model,
        show::short_id(&found.provider),
    );
    show::print_result(output, &facts, &text);
    Ok(())
}

async fn open_reference(args: &ReferenceArgs) -> Result<AuditReference, Failure> {
    let (path, context, threads) = (args.reference.clone(), args.context, args.threads);
    let opened =
        run_blocking(move || AuditReference::open(&path, context, threads, &Handle::current()));
    Ok(opened.await??)
}

/// Runs what computes for long, so that Ctrl-C is heard meanwhile.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::new(Kind::Unexpected, error, ""))
}

/// Audits one provider. Returns the evidence, and the reference again.
async fn audit(
    mut reference: AuditReference,
    model: String,
    provider: AccountKey,
    tabs: Vec<TabTranscript>,
) -> Result<(AuditEvidence, AuditReference), Failure> {
    let audited = run_blocking(move || {
        let audited = audit_tabs(&mut reference, &model, provider, tabs);
        audited.map(|evidence| (evidence, reference))
    });
    audited.await?
}

fn audit_tabs(
    reference: &mut AuditReference,
    model: &str,
    provider: AccountKey,
    tabs: Vec<TabTranscript>,
) -> Result<AuditEvidence, Failure> {
    reference.begin_provider();
    let exchanges = tabs.iter().flat_map(|tab| &tab.exchanges);
    let noise = reference.measure_noise(exchanges.map(|it| (&it.request, &it.answer, it.at)))?;
    let mut core = AuditCore::new(noise.unwrap_or_default()).map_err(|error| {
        let hint = "give another copy of the model as --reference";
        Failure::new(Kind::Input, error, hint)
    })?;
    let (mut readings, mut unread) = (TabReadings::new(), BTreeMap::<String, u64>::new());
    let mut answers = 0;
    for tab in &tabs {
        // A verdict that is final needs no more reading.
        if core.verdict() == Verdict::DoesNotFit {
            break;
        }
        let mut of_tab = Vec::with_capacity(tab.exchanges.len());
        for it in &tab.exchanges {
            let read = reference.read_answer(&it.request, &it.answer, it.at);
            match &read {
                Ok(tokens) => {
                    answers += 1;
                    core.begin_answer();
                    tokens.iter().for_each(|token| core.push(token));
                }
                Err(fault) => {
                    if fault.is_evasive() {
                        core.skip_evasive_answer();
                    }
                    *unread.entry(fault.to_string()).or_default() += 1;
                }
            }
            of_tab.push(read.ok());
        }
        readings.push(of_tab);
    }
    let mut tabs = tabs;
    tabs.truncate(readings.len());
    let about = (reference.id(), core.noise());
    let mut result = AuditResult::new(model, provider, about, core.tally());
    let signed = tabs.iter().filter(|tab| tab.check_signed().is_ok()).count();
    (result.answers, result.unread) = (answers, unread);
    (result.signed_tabs, result.tabs) = (show::to_u64(signed), show::to_u64(tabs.len()));
    Ok(AuditEvidence::new(result, tabs, readings))
}

fn print_results(results: &[AuditResult], penalty: f64) {
    print_audits(results, false);
    for result in results {
        print_remarks(result, penalty);
    }
    if results.iter().all(does_not_fit) {
        show::print_notice(
            "no provider fits: make sure that the reference is the model that they name, with the \
             same chat template, and that no engine adds a system prompt",
        );
    }
}

fn print_remarks(result: &AuditResult, penalty: f64) {
    let provider = show::short_id(&result.provider);
    for (cause, count) in &result.unread {
        let answers = show::format_count(*count, "answer");
        show::print_notice(&format!("{answers} of {provider} not read: {cause}"));
    }
    if result.signed_tabs < result.tabs {
        show::print_notice(&format!(
            "{} of {} tabs of {provider} have no valid receipt, so they show others nothing",
            result.tabs - result.signed_tabs,
            result.tabs
        ));
    }
    let tally = &result.tally;
    if does_not_fit(result) {
        let what = match result.leaves {
            true => "buys nothing more of this model from",
            false => "still buys from (without --leave, as no provider fits)",
        };
        show::print_notice(&format!(
            "a server of this folder {what} {provider}; `souk audit forget {}` undoes this audit",
            result.id()
        ));
        return;
    }
    if tally.evasive_answers > result.answers {
        show::print_notice(&format!(
            "{provider} gave most answers in a form that cannot be read, so it does not fit yet"
        ));
    }
    let is_uncertain = tally.verdict == Verdict::NotEnough;
    if is_uncertain && tally.penalised > 0 {
        let of_model = match (penalty - 1.0).abs() < f64::EPSILON {
            true => String::new(),
            false => format!(" (the model's generation_config.json states {penalty})"),
        };
        show::print_notice(&format!(
            "{} of {provider} can be due to a penalty on repetitions{of_model}, and convict \
             nobody: a provider of vLLM switches its own off with --generation-config vllm",
            show::format_count(tally.penalised, "token")
        ));
    }
    if is_uncertain && tally.seeded > 0 && tally.own_draws * 10 < tally.tokens * 9 {
        show::print_notice(&format!(
            "{provider} does not draw by seed as souk's decoder does: only its answers at \
             temperature 0 can be judged"
        ));
    }
}
