//! `souk market verify`: checks the market's history with its genesis (the initial state) as the
//! only trusted input. It shows which validators signed which head (the size and root hash of the
//! history), whether enough of them signed one, and whether two heads contradict each other.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use souk_api::history::HistoryView;
use souk_api::time::format_rfc3339;
use souk_folder::clock::unix_ms;
use souk_folder::invitation::Invitation;
use souk_folder::market_file::MarketFile;
use souk_node::client::history::{
    Continuation, ContinuationCheck, CountedRoster, Fork, GatheredHistory, HistoryCheck,
    ShownContinuation, SignedHead, StoredHistory, TreeNote, WitnessKey, WitnessedNote,
};
use souk_node::client::{join, reach};
use souk_node::market::Genesis;

use super::evidence::{save_fork, save_heads, save_refutation, write_file};
use super::look::{HistoryLook, Relation, ShownProof};
use super::{from_joining, parse_invitation};
use crate::args::{Output, VerifyArgs, WitnessFile};
use crate::commands::roster::{self, KnownRoster};
use crate::commands::uncertified::fail_uncertified;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, from_reach};
use crate::show::certification::{Certification, warn_of_fault};
use crate::show::{
    Table, format_count, format_seconds, print_json, print_line, print_notice, short_id,
};

/// The file with the last certified head that this folder saw: later ones must continue it.
const SEEN_FILE: &str = "history.checkpoint";

/// The greatest age of a certified head that is no reason for doubt.
const AGE_MS_MAX: u64 = 600_000;

/// Verifies the history of a market, as the module describes.
pub async fn verify_history(folder: &Path, output: Output, args: &VerifyArgs) -> Outcome {
    let market = read_market(folder, args).await?;
    let genesis = market.genesis.clone();
    let witnesses = read_witnesses(&args.witness, &genesis)?;
    if !args.from.is_empty() {
        // An invitation names a market of its own, of which the folder knows nothing.
        let known = match args.invitation {
            Some(_) => KnownRoster::of_genesis(&genesis),
            None => KnownRoster::read(folder)?,
        };
        return verify_folders(folder, output, &known, &args.from, witnesses);
    }
    let seen_path = args.invitation.is_none().then(|| folder.join(SEEN_FILE));
    let seen = seen_path.as_deref().map(read_seen).transpose()?.flatten();
    let (broker, _) = reach::connect_read_only(&market)
        .await
        .map_err(from_reach)?;
    let notes = witnesses.iter().map(|it| it.signed.note.clone());
    let known = seen.clone().into_iter().chain(notes).collect();
    let mut look = HistoryLook::take(&broker, &genesis, known).await;
    let mut witnessed = Vec::new();
    for witness in witnesses {
        let relation = look.relate_head(&witness.signed.note).await;
        witnessed.push((witness, relation));
    }
    let history = &look.history;
    let report = Report {
        genesis: &genesis,
        check: &history.check,
        answers: Some(history),
        counted: None,
        proofs: &look.proofs,
        witnessed: &witnessed,
    };
    if let Some(folder) = &args.heads {
        save_heads(folder, &history.check, &history.orders)?;
    }
    report.conclude(folder, output)?;
    if args.invitation.is_none() {
        roster::keep_orders(folder, &history.orders)?;
    }
    check_progress(history)?;
    let Some(certified) = history.check.find_certified().cloned() else {
        return Ok(());
    };
    if let Some(seen) = seen.filter(|seen| seen.head != certified.head()) {
        check_seen(&mut look, &seen, &certified).await?;
    }
    match seen_path {
        Some(path) => write_file(&path, certified.note.encode().as_bytes()),
        None => Ok(()),
    }
}

/// Checks that the certified head continues the one that this folder saw last. Without a proof the
/// command fails, so that the folder does not forget what it saw.
async fn check_seen(
    look: &mut HistoryLook<'_>,
    seen: &TreeNote,
    certified: &SignedHead,
) -> Outcome {
    let sizes = (seen.head.size, certified.head().size);
    if sizes.0 == 0 {
        return Ok(());
    }
    let hint = format!(
        "try again; if it stays so, ask the operators, and remove {SEEN_FILE} only if they founded \
         the market again"
    );
    let fail = |what: String| Err(Failure::new(Kind::Verification, what, &hint));
    if sizes.0 >= sizes.1 {
        let cause = "the certified history has {} steps, and this folder saw {} of another one";
        return fail(format_sizes(cause, [sizes.1, sizes.0]));
    }
    match look.relate_head(seen).await {
        Relation::OneHistory => Ok(()),
        Relation::Contradicts => {
            let cause = "the certified history of {} steps does not continue the {} steps that \
                         this folder saw";
            fail(format_sizes(cause, [sizes.1, sizes.0]))
        }
        Relation::Unproven => {
            let cause = "nobody shows that the certified history of {} steps continues the {} \
                         steps that this folder saw";
            fail(format_sizes(cause, [sizes.1, sizes.0]))
        }
    }
}

fn format_sizes(cause: &str, sizes: [u64; 2]) -> String {
    let [first, second] = sizes.map(|size| size.to_string());
    cause.replacen("{}", &first, 1).replacen("{}", &second, 1)
}

/// Checks that validators still certify what they sign, and that the certified head is of today's
/// history, and not one that somebody held back.
pub(super) fn check_progress(history: &GatheredHistory) -> Outcome {
    let found = Certification::of_history(history);
    if found.is_behind() || found.age_ms() >= AGE_MS_MAX {
        return Err(fail_uncertified(&"nothing newer is certified", history));
    }
    warn_of_fault(history);
    Ok(())
}

/// Reads the market of the folder, or fetches that of an invitation.
async fn read_market(folder: &Path, args: &VerifyArgs) -> Result<MarketFile, Failure> {
    let Some(text) = &args.invitation else {
        let market = MarketFile::read_nearest(folder).map_err(from_config)?;
        return Ok(market.with_known(folder));
    };
    let invitation: Invitation = parse_invitation(text)?;
    let fetched = join::fetch_market(&invitation).await;
    let (genesis, _) = fetched.map_err(from_joining)?;
    Ok(MarketFile::new(genesis))
}

/// Verifies the files of folders with the roster that this folder knows.
fn verify_folders(
    folder: &Path,
    output: Output,
    known: &KnownRoster,
    from: &[PathBuf],
    witnesses: Vec<NamedWitness>,
) -> Outcome {
    let stored = StoredHistory::read_folders(from).map_err(|error| {
        let hint = "name a validator's replica/history, or a folder with files that end in \
                    .checkpoint";
        Failure::new(Kind::Input, error, hint)
    })?;
    let rosters = known.count_folders(&stored);
    let judge = |counted: CountedRoster| {
        let check = stored.judge_notes(&known.genesis, counted.roster.clone());
        (check, counted)
    };
    let judged: Vec<(HistoryCheck, CountedRoster)> = rosters.into_iter().map(judge).collect();
    let certified = judged
        .iter()
        .position(|(it, _)| it.find_certified().is_some());
    let place = certified.unwrap_or(0);
    let mut convicting: Vec<Fork> = Vec::new();
    for (other, (check, _)) in judged.iter().enumerate() {
        let forks = check.forks.iter().filter(|it| !it.liars().is_empty());
        let forks = forks.filter(|it| other != place && !convicting.contains(it));
        let forks: Vec<Fork> = forks.cloned().collect();
        convicting.extend(forks);
    }
    let Some((mut check, counted)) = judged.into_iter().nth(place) else {
        unreachable!("the founders are one roster at least");
    };
    // Two signatures of one validator convict it, whichever roster counts.
    convicting.retain(|it| !check.forks.contains(it));
    check.forks.extend(convicting);
    let plans = check.plan_proofs().into_iter();
    let prove = |check: ContinuationCheck| {
        let shown = stored.prove_continuation(&check);
        (check, shown)
    };
    let proofs: Vec<ShownProof> = plans.map(prove).collect();
    let relate = |witness: NamedWitness| {
        let certified = check.find_certified();
        let relation = Relation::in_folders(&stored, certified, &witness.signed.note);
        (witness, relation)
    };
    let witnessed: Vec<(NamedWitness, Relation)> = witnesses.into_iter().map(relate).collect();
    let report = Report {
        genesis: &known.genesis,
        check: &check,
        answers: None,
        counted: Some(&counted),
        proofs: &proofs,
        witnessed: &witnessed,
    };
    report.conclude(folder, output)
}

/// A head that a witness signed, and its key.
pub(super) struct NamedWitness {
    pub key: WitnessKey,
    pub signed: WitnessedNote,
}

fn read_witnesses(named: &[WitnessFile], genesis: &Genesis) -> Result<Vec<NamedWitness>, Failure> {
    let read = |WitnessFile { key, path }: &WitnessFile| {
        let hint = "name the `witness.checkpoint` of that witness, and the key that it printed";
        let fault = |cause: String| {
            let cause = format!("{}: {cause}", path.display());
            Failure::new(Kind::Input, cause, hint)
        };
        let bytes = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
        let signed =
            WitnessedNote::decode(&bytes, key).map_err(|error| fault(error.to_string()))?;
        if signed.note.market != genesis.market_id() {
            return Err(fault("it is of another market".to_owned()));
        }
        let key = key.clone();
        Ok(NamedWitness { key, signed })
    };
    named.iter().map(read).collect()
}

fn read_seen(path: &Path) -> Result<Option<TreeNote>, Failure> {
    if !path.exists() {
        return Ok(None);
    }
    let damaged = |cause: String| {
        let cause = format!(
            "{}, the last certified head seen here: {cause}",
            path.display()
        );
        let hint = "remove it if you do not need to know that the history continues it";
        Failure::new(Kind::Verification, cause, hint)
    };
    let bytes = std::fs::read(path).map_err(|error| damaged(error.to_string()))?;
    let note = TreeNote::decode(&bytes);
    note.map(Some).map_err(|error| damaged(error.to_string()))
}

/// The findings about a market.
pub(super) struct Report<'a> {
    pub genesis: &'a Genesis,
    pub check: &'a HistoryCheck,
    /// The validators' answers; none if the notes come from a folder.
    pub answers: Option<&'a GatheredHistory>,
    /// The roster that the notes of a folder were judged by.
    pub counted: Option<&'a CountedRoster>,
    pub proofs: &'a [ShownProof],
    /// What witnesses signed, and how it relates to the certified head.
    pub witnessed: &'a [(NamedWitness, Relation)],
}

impl Report<'_> {
    /// Prints the findings. Fails if they show a lie, or that nothing is certified.
    fn conclude(&self, folder: &Path, output: Output) -> Outcome {
        let evidence = self.save_evidence(folder)?;
        match output {
            Output::Json => print_json(&self.to_json(&evidence)),
            Output::Text => self.print(),
        }
        self.judge(&evidence)
    }

    /// Fails if the findings show a lie, or that nothing is certified.
    pub fn judge(&self, evidence: &[PathBuf]) -> Outcome {
        if let Some(fork) = self.check.forks.first() {
            let [one, other] = &fork.heads;
            let suspects = self.check.list_suspects(one, other);
            return Err(from_fork(fork, &suspects, evidence));
        }
        if let Some((check, _)) = self.contradictions().next() {
            let suspects = self.check.list_suspects(&check.from, &check.to);
            return Err(from_contradiction(check, &suspects, evidence));
        }
        if self.check.find_certified().is_none() {
            if let Some(history) = self.answers {
                return Err(fail_uncertified(&"no head is certified", history));
            }
            let cause = format!(
                "no head is certified: {} of {} validators must sign the same one",
                self.check.needed,
                self.check.members.len()
            );
            let hint = "name folders with a head that more validators signed";
            return Err(Failure::new(Kind::Verification, cause, hint));
        }
        self.witnessed.iter().try_for_each(Self::judge_witness)
    }

    /// Fails if the certified history is not shown to be the one that a witness signed.
    fn judge_witness((witness, relation): &(NamedWitness, Relation)) -> Outcome {
        let NamedWitness { key, signed } = witness;
        let (name, size) = (key.name(), signed.note.head.size);
        let what = match relation {
            Relation::OneHistory => return Ok(()),
            Relation::Contradicts => "contradicts",
            Relation::Unproven => "is not shown to be one history with",
        };
        let cause = format!("the certified history {what} the {size} steps that {name} signed");
        let hint = "ask the witness for its newest head and try again; if it stays so, trade no \
                    more, and show the operators the witness' file";
        Err(Failure::new(Kind::Verification, cause, hint))
    }

    /// Returns the proofs that failed.
    pub fn contradictions(&self) -> impl Iterator<Item = (&ContinuationCheck, &ShownContinuation)> {
        let proofs = self.proofs.iter();
        proofs.filter_map(|(check, shown)| {
            let shown = shown.as_ref()?;
            (shown.continuation == Continuation::Refuted).then_some((check, shown))
        })
    }

    /// Saves what shows others the contradictions: two heads of one size, which convict who signed
    /// both, or two of different sizes, with the tiles that refute one of them.
    pub fn save_evidence(&self, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
        let mut saved = Vec::new();
        for fork in &self.check.forks {
            saved.extend(save_fork(folder, fork)?);
        }
        for (check, shown) in self.contradictions() {
            saved.push(save_refutation(folder, check, shown)?);
        }
        saved.sort();
        saved.dedup();
        Ok(saved)
    }

    fn to_json(&self, evidence: &[PathBuf]) -> Value {
        let market = self.genesis.market_id().to_string();
        let view = HistoryView::from_check(market, self.check);
        let answers = self.answers.map(|history| {
            let answers = history.answers.iter().map(|answer| {
                let latest = self.check.latest_of(answer.raft_id);
                json!({
                    "validator": answer.raft_id,
                    "account": self.check.members.get(&answer.raft_id).map(ToString::to_string),
                    "signed_size": latest.map(|signed| signed.head().size),
                    "forged": answer.list_forged(&self.check.members),
                    "fault": answer.notes.as_ref().err().map(ToString::to_string),
                })
            });
            answers.collect::<Vec<Value>>()
        });
        let proofs = self.proofs.iter().map(|(check, shown)| {
            json!({
                "from": check.from.head().size, "to": check.to.head().size,
                "consistent": match shown.as_ref().map(|shown| shown.continuation) {
                    Some(Continuation::Proven { .. }) => Some(true),
                    Some(Continuation::Refuted) => Some(false),
                    // The tiles are of neither head, so they show nothing.
                    Some(Continuation::Contradicted | Continuation::Missing(_)) | None => None,
                },
            })
        });
        let mut value = json!(view);
        value["answers"] = json!(answers);
        value["roster"] = json!(self.counted.map(roster::to_json));
        value["proofs"] = proofs.collect();
        value["evidence"] = json!(evidence);
        let witnessed = self.witnessed.iter().map(|(witness, relation)| {
            json!({
                "witness": witness.key.name(), "size": witness.signed.note.head.size,
                "signed_at": format_rfc3339(witness.signed.time_s.saturating_mul(1_000)),
                "is_one_history": match relation {
                    Relation::OneHistory => Some(true),
                    Relation::Contradicts => Some(false),
                    Relation::Unproven => None,
                },
            })
        });
        value["witnesses"] = witnessed.collect();
        value
    }

    fn print(&self) {
        let chain = self.genesis.chain.as_str();
        print_line(&format!(
            "market      {chain} ({})",
            self.genesis.market_id()
        ));
        let members = self.check.members.len();
        match self.check.find_certified() {
            Some(signed) => {
                let head = signed.head();
                let signers = signed.signers.len();
                print_line(&format!(
                    "history     {} up to entry {} of the log, {} old",
                    format_count(head.size, "step"),
                    head.index,
                    format_age(head.time.0),
                ));
                print_line(&format!("root        {}", head.root));
                if let Some(state) = head.state {
                    print_line(&format!("state       {state}"));
                }
                print_line(&format!(
                    "certified   by {signers} of {members} validators ({} needed): {}",
                    self.check.needed,
                    format_ids(&signed.signers),
                ));
            }
            None => print_line(&format!(
                "certified   nothing: {} of {members} validators are needed",
                self.check.needed
            )),
        }
        self.counted.into_iter().for_each(roster::print_counted);
        self.print_validators();
        self.print_forged();
        self.print_proofs();
        self.print_witnesses();
    }

    fn print_witnesses(&self) {
        for (NamedWitness { key, signed }, relation) in self.witnessed {
            if *relation == Relation::OneHistory {
                print_line(&format!(
                    "witness     {} signed {} of this history {} ago",
                    key.name(),
                    format_count(signed.note.head.size, "step"),
                    format_age(signed.time_s.saturating_mul(1_000)),
                ));
            }
        }
    }

    fn print_forged(&self) {
        for answer in self.answers.iter().flat_map(|history| &history.answers) {
            let forged = answer.list_forged(&self.check.members);
            if !forged.is_empty() {
                let forged: Vec<u64> = forged.into_iter().collect();
                print_notice(&format!(
                    "note: validator {} shows forged signatures of {}; they count for nothing",
                    answer.raft_id,
                    format_ids(&forged)
                ));
            }
        }
    }

    fn print_validators(&self) {
        let columns = [
            "validator",
            "account",
            ">signed steps",
            "root",
            ">age",
            "answer",
        ];
        let mut table = Table::new(&columns);
        for (id, account) in &self.check.members {
            let latest = self.check.latest_of(*id).map(SignedHead::head);
            let answers = self.answers.map(|history| &history.answers);
            let answer = answers.and_then(|all| all.iter().find(|it| it.raft_id == *id));
            let fault = answer.and_then(|answer| answer.notes.as_ref().err());
            table.add_row([
                id.to_string(),
                short_id(account),
                latest.map_or("nothing".to_owned(), |head| head.size.to_string()),
                latest.map_or(String::new(), |head| head.root.to_string()[..16].to_owned()),
                latest.map_or(String::new(), |head| format_age(head.time.0)),
                match (answer, fault) {
                    (_, Some(fault)) => fault.to_string(),
                    (Some(_), None) => "yes".to_owned(),
                    (None, None) => "not asked".to_owned(),
                },
            ]);
        }
        table.print();
    }

    fn print_proofs(&self) {
        for (check, shown) in self.proofs {
            let [from, to] = [&check.from, &check.to].map(|signed| signed.head().size);
            let sizes = format!("{from} → {to} steps");
            match shown.as_ref().map(|shown| shown.continuation) {
                Some(Continuation::Proven { hashes }) => {
                    print_line(&format!(
                        "consistent  {sizes}, by a proof of length {hashes}"
                    ));
                }
                Some(Continuation::Refuted) => print_line(&format!("different   {sizes}")),
                Some(Continuation::Contradicted) => print_notice(&format!(
                    "note: {sizes} is not proven: the tiles are of another history"
                )),
                Some(Continuation::Missing(missing)) => {
                    print_notice(&format!("note: {sizes} is not proven: {missing}"));
                }
                None => print_notice(&format!("note: {sizes} is not proven: nobody answered")),
            }
        }
    }
}

fn from_fork(fork: &Fork, suspects: &[u64], evidence: &[PathBuf]) -> Failure {
    let size = fork.heads[0].head().size;
    let what = match fork.heads[0].head().root == fork.heads[1].head().root {
        true => format!("two states after {size} steps"),
        false => format!("two roots of {size} steps"),
    };
    let [one, other] = [&fork.heads[0], &fork.heads[1]].map(|it| format_ids(&it.signers));
    let liars = fork.liars();
    let cause = match &liars[..] {
        [] => format!(
            "{what} are signed, one by {one}, the other by {other}: {}",
            describe_suspects(suspects)
        ),
        liars => format!(
            "validator {} signed {what}: one is signed by {one}, the other by {other}",
            format_ids(liars)
        ),
    };
    let facts = [
        ("liars", json!(liars)),
        ("suspects", json!(suspects)),
        ("size", json!(size)),
    ];
    Failure::new(Kind::Verification, cause, name_evidence(evidence)).with(facts)
}

fn from_contradiction(
    check: &ContinuationCheck,
    suspects: &[u64],
    evidence: &[PathBuf],
) -> Failure {
    let [from, to] = [&check.from, &check.to];
    let cause = format!(
        "the {} steps that {} signed are not the first of the {} that {} signed, by the tiles of \
         all that answered: {}",
        from.head().size,
        format_ids(&from.signers),
        to.head().size,
        format_ids(&to.signers),
        describe_suspects(suspects)
    );
    let facts = [("liars", json!([])), ("suspects", json!(suspects))];
    Failure::new(Kind::Verification, cause, name_evidence(evidence)).with(facts)
}

/// Says who is at fault of two heads, neither of which shares a signer with the other.
fn describe_suspects(suspects: &[u64]) -> String {
    match suspects {
        [] => "a validator lies".to_owned(),
        suspects => format!(
            "validator {} contradicts what is certified, so it lies, is broken, or followed a \
             leader that lied",
            format_ids(suspects)
        ),
    }
}

fn name_evidence(evidence: &[PathBuf]) -> String {
    let paths = evidence.iter().map(|path| path.display().to_string());
    let paths: Vec<String> = paths.collect();
    format!(
        "trade no more, and show the operators the evidence: {}",
        paths.join(" and ")
    )
}

/// Returns how long ago a time of the log was, by this machine's clock.
fn format_age(time_ms: u64) -> String {
    format_seconds(unix_ms().saturating_sub(time_ms) as f64 / 1e3)
}

fn format_ids(ids: &[u64]) -> String {
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    ids.join(", ")
}
