//! `souk receipt chain`: checks, from files alone, that a job's receipts lead from its inputs to
//! its outputs, and that the market settled each; adds up what they cost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::json;
use souk_node::client::settlement::{ReceiptProof, Settlement};
use souk_node::market::{LeaseId, Receipt as Signed};
use souk_node::memory::Tensor;

use super::{check_market, check_proof, read_signed};
use crate::args::{ChainArgs, Output};
use crate::commands::roster::KnownRoster;
use crate::failure::{Failure, Kind, Outcome};
use crate::{files, show};

/// The bytes of a content's id.
type Content = [u8; 32];

/// Where a receipt's input comes from.
enum InputSource {
    /// A file that the user gave.
    File(PathBuf),
    /// The receipt of another lease.
    Lease(LeaseId),
}

/// The receipts of one job, each valid by itself.
struct Chain {
    receipts: Vec<(PathBuf, Signed)>,
    /// The settlements of those with a proof.
    settled: BTreeMap<LeaseId, Settlement>,
}

/// Runs the command.
pub fn check_chain(folder: &Path, output: Output, args: &ChainArgs) -> Outcome {
    let mut chain = Chain::read(&args.receipts)?;
    let inputs = read_tensors(&args.input)?;
    let sources = chain.trace_inputs(&inputs)?;
    chain.check_order(&sources)?;
    chain.check_files(&inputs)?;
    for (content, file) in read_tensors(&args.result)? {
        if chain.find_maker(content, None).is_none() {
            let cause = format!("no receipt names {} as an output", file.display());
            let hint = "give all receipts of the job, and each output as souk wrote it";
            return Err(broken(cause, hint));
        }
    }
    if !args.proof.is_empty() {
        chain.check_proofs(&KnownRoster::read(folder)?, &args.proof)?;
    }
    chain.print(output, &sources);
    Ok(())
}

impl Chain {
    /// Reads receipts that must be of one job.
    fn read(paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut receipts: Vec<(PathBuf, Signed)> = Vec::new();
        let mut leases = BTreeSet::new();
        for path in paths {
            let receipt = read_signed(path)?;
            if !leases.insert(receipt.body.lease) {
                let cause = format!("{} is of a lease that another file is of", path.display());
                return Err(broken(cause, "give each receipt once"));
            }
            if let Some((_, first)) = receipts.first() {
                let of = |it: &Signed| (it.body.market, it.body.job, it.body.buyer);
                if of(first) != of(&receipt) {
                    let cause = format!("{} is of another job", path.display());
                    return Err(broken(cause, "give the receipts of one job"));
                }
            }
            receipts.push((path.clone(), receipt));
        }
        let settled = BTreeMap::new();
        Ok(Self { receipts, settled })
    }

    /// Returns a lease that made a content, other than `reader`.
    fn find_maker(&self, content: Content, reader: Option<LeaseId>) -> Option<LeaseId> {
        let others = self.receipts.iter().map(|(_, it)| &it.body);
        let mut others = others.filter(|it| Some(it.lease) != reader);
        let maker = others.find(|it| it.outputs.iter().any(|output| output.0 == content));
        maker.map(|it| it.lease)
    }

    /// Refuses receipts whose inputs lead to no file, only to each other.
    fn check_order(&self, sources: &BTreeMap<LeaseId, Vec<InputSource>>) -> Outcome {
        let mut reached = BTreeSet::new();
        loop {
            let is_known = |source: &InputSource| match source {
                InputSource::File(_) => true,
                InputSource::Lease(maker) => reached.contains(maker),
            };
            let next = sources
                .iter()
                .filter(|(lease, inputs)| !reached.contains(*lease) && inputs.iter().all(is_known));
            let next: Vec<LeaseId> = next.map(|(lease, _)| *lease).collect();
            if next.is_empty() {
                break;
            }
            reached.extend(next);
        }
        match sources.keys().find(|lease| !reached.contains(*lease)) {
            None => Ok(()),
            Some(lease) => {
                let cause = format!("the inputs of lease {lease} come from its own outputs");
                Err(broken(
                    cause,
                    "no job of souk makes such receipts: trust none of them",
                ))
            }
        }
    }

    /// Refuses a given input that no receipt reads: the chain would say nothing about it.
    fn check_files(&self, inputs: &BTreeMap<Content, PathBuf>) -> Outcome {
        let read = self.receipts.iter().flat_map(|(_, it)| &it.body.inputs);
        let read: BTreeSet<Content> = read.map(|input| input.0).collect();
        let used = inputs.iter().filter(|(content, _)| read.contains(*content));
        let used: BTreeSet<&PathBuf> = used.map(|(_, file)| file).collect();
        match inputs.values().find(|file| !used.contains(file)) {
            None => Ok(()),
            Some(file) => {
                let cause = format!("no receipt reads {}", file.display());
                let hint = "give the receipts of the parts that read it, or leave it out";
                Err(broken(cause, hint))
            }
        }
    }

    /// Returns the source of each receipt's inputs. Each must be a given file, or what another
    /// receipt made.
    fn trace_inputs(
        &self,
        inputs: &BTreeMap<Content, PathBuf>,
    ) -> Result<BTreeMap<LeaseId, Vec<InputSource>>, Failure> {
        let mut sources = BTreeMap::new();
        for (path, receipt) in &self.receipts {
            let lease = receipt.body.lease;
            let source = |content: Content| match inputs.get(&content) {
                Some(file) => Some(InputSource::File(file.clone())),
                None => self
                    .find_maker(content, Some(lease))
                    .map(InputSource::Lease),
            };
            let found = receipt.body.inputs.iter().map(|input| {
                source(input.0).ok_or_else(|| {
                    let cause = format!(
                        "{} reads {}, which is no given input and no other receipt's output",
                        path.display(),
                        input
                    );
                    broken(
                        cause,
                        "give all receipts of the job, and each input with -i",
                    )
                })
            });
            sources.insert(lease, found.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(sources)
    }

    /// Checks a proof of settlement for each receipt.
    fn check_proofs(&mut self, known: &KnownRoster, proofs: &[PathBuf]) -> Outcome {
        for path in proofs {
            let fault = |cause: String| {
                let cause = format!("{}: {cause}", path.display());
                broken(cause, "make it with `souk receipt verify --certified -o`")
            };
            let decoded = ReceiptProof::decode(&files::read(path)?);
            let proof = decoded.map_err(|error| fault(error.to_string()))?;
            let proven = self.receipts.iter().find_map(|(_, receipt)| {
                let (settled, _) = check_proof(&proof, receipt, known).ok()?;
                Some((receipt.body.lease, settled))
            });
            let proven =
                proven.ok_or_else(|| fault("it proves none of the receipts".to_owned()))?;
            self.settled.insert(proven.0, proven.1);
        }
        for (path, receipt) in &self.receipts {
            check_market(receipt, &known.genesis)?;
            if !self.settled.contains_key(&receipt.body.lease) {
                let cause = format!("no proof shows that {} was settled", path.display());
                return Err(broken(cause, "give a proof of each receipt, or none"));
            }
        }
        Ok(())
    }

    fn print(&self, output: Output, sources: &BTreeMap<LeaseId, Vec<InputSource>>) {
        let amounts = self.receipts.iter().map(|(_, it)| it.body.amount.0);
        let total = amounts.fold(0, u64::saturating_add);
        if output == Output::Json {
            let links = self.receipts.iter().map(|(path, receipt)| {
                let lease = receipt.body.lease;
                let inputs = sources[&lease].iter().map(|source| match source {
                    InputSource::File(file) => json!({ "file": file }),
                    InputSource::Lease(lease) => json!({ "lease": lease }),
                });
                json!({
                    "receipt": path,
                    "lease": lease,
                    "graph": receipt.body.graph,
                    "inputs": inputs.collect::<Vec<_>>(),
                    "outputs": receipt.body.outputs,
                    "amount": receipt.body.amount,
                    "settled_at": self.settled.get(&lease).map(|it| it.step),
                })
            });
            let links: Vec<_> = links.collect();
            return show::print_json(&json!({ "valid": true, "links": links, "amount": total }));
        }
        let columns = [">lease", "graph", "reads", ">amount", "settled"];
        let mut table = show::Table::new(&columns);
        for (_, receipt) in &self.receipts {
            let lease = receipt.body.lease;
            let reads = sources[&lease].iter().map(|source| match source {
                InputSource::File(file) => file.display().to_string(),
                InputSource::Lease(lease) => format!("lease {lease}"),
            });
            let settled = self.settled.get(&lease);
            table.add_row([
                lease.to_string(),
                show::short_id(&receipt.body.graph),
                reads.collect::<Vec<_>>().join(", "),
                show::format_credits(receipt.body.amount.0),
                settled.map_or("not asked".to_owned(), |it| {
                    format!("at {}, certified by {}", it.step, it.signers.len())
                }),
            ]);
        }
        table.print();
        show::print_line(&format!(
            "valid: {} of one job, {} credits",
            show::format_count(show::to_u64(self.receipts.len()), "receipt"),
            show::format_credits(total)
        ));
    }
}

/// Reads the tensors of files, by their ids.
fn read_tensors(paths: &[PathBuf]) -> Result<BTreeMap<Content, PathBuf>, Failure> {
    let mut found = BTreeMap::new();
    for path in paths {
        for tensor in files::read_tensors(path)? {
            found.insert(*Tensor::id(&tensor).as_bytes(), path.clone());
        }
    }
    Ok(found)
}

fn broken(cause: String, hint: &str) -> Failure {
    Failure::new(Kind::Verification, cause, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_that_only_feed_each_other_are_no_chain() {
        let chain = Chain {
            receipts: Vec::new(),
            settled: BTreeMap::new(),
        };
        let file = || InputSource::File("x.npy".into());
        let lease = |number| InputSource::Lease(LeaseId(number));
        let check = |sources: Vec<(u64, Vec<InputSource>)>| {
            let sources = sources.into_iter();
            let sources = sources.map(|(number, of)| (LeaseId(number), of));
            chain.check_order(&sources.collect()).is_ok()
        };
        let line = vec![
            (1, vec![lease(2), file()]),
            (2, vec![lease(3)]),
            (3, vec![file()]),
        ];
        assert!(check(line));
        assert!(check(vec![(1, Vec::new())]), "a part can have no inputs");
        let circle = vec![
            (1, vec![lease(2), file()]),
            (2, vec![lease(1)]),
            (3, vec![file()]),
        ];
        assert!(!check(circle));
    }
}
