//! Computes the work of an exact lease again, and judges the outputs that its provider signed. A
//! validator does so for a dispute, and a buyer for an audit of its own.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use souk_market::Verdict;
use souk_memory::{ContentId, Store};
use souk_sandbox::{JudgingFault, compute_outputs};

/// Computes a graph again in a sandbox on this machine, once for each input, and judges the outputs
/// that were signed for all of them. `program` is this program, which becomes the sandbox. The
/// store must have the contents.
///
/// Returns `None` if the signed outputs are some of the right ones only.
pub(crate) async fn judge_work(
    program: PathBuf,
    store: &Arc<Store>,
    graph: (ContentId, &[ContentId]),
    inputs: &[ContentId],
    signed: &BTreeSet<ContentId>,
) -> Result<Option<Verdict>, JudgingFault> {
    let made = compute_outputs(program, store, graph, inputs).await?;
    Ok(judge_outputs(signed, &made))
}

/// Returns whether the work gives the outputs that the provider signed: an output that it does not
/// give convicts, and only the same outputs clear. Some of the right outputs are no verdict: a liar
/// who computed one request for all signs them, and so does an honest provider that was cut short.
fn judge_outputs(signed: &BTreeSet<ContentId>, made: &BTreeSet<ContentId>) -> Option<Verdict> {
    match (signed.is_subset(made), signed.len() == made.len()) {
        (false, _) => Some(Verdict::Guilty),
        (true, true) => Some(Verdict::Innocent),
        (true, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(bytes: &[u8]) -> BTreeSet<ContentId> {
        let id = |byte: &u8| ContentId::for_content(&[*byte]);
        bytes.iter().map(id).collect()
    }

    fn verdict(signed: &[u8], made: &[u8]) -> Option<Verdict> {
        judge_outputs(&ids(signed), &ids(made))
    }

    #[test]
    fn some_of_the_right_outputs_are_no_verdict() {
        let made = [1, 2, 3];
        for signed in [&[1][..], &[3], &[1, 3], &[2, 3], &[]] {
            assert_eq!(verdict(signed, &made), None, "{signed:?}");
        }
    }

    #[test]
    fn the_same_outputs_clear_and_a_strange_one_convicts() {
        assert_eq!(verdict(&[2, 1], &[1, 2]), Some(Verdict::Innocent));
        for signed in [&[9][..], &[1, 9], &[1, 2, 9], &[8, 9]] {
            assert_eq!(
                verdict(signed, &[1, 2]),
                Some(Verdict::Guilty),
                "{signed:?}"
            );
        }
    }
}
