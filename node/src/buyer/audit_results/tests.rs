use super::*;

const MODEL: &str = "qwen/qwen3-8b";

fn result(provider: u8, verdict: Verdict, at: u64) -> AuditResult {
    let tally = AuditTally {
        verdict,
        tokens: 300,
        own_draws: 290,
        seeded: 0,
        evidence: 1.5,
        fit: -2.0,
        convicted_after: None,
    };
    let reference = ContentId::for_content(b"weights");
    let result = AuditResult::new(MODEL, AccountKey([provider; 32]), (reference, 0.04), tally);
    AuditResult { at, ..result }
}

#[test]
fn results_are_read_as_they_were_saved_and_the_newest_stay() {
    let market = tempfile::tempdir().unwrap();
    assert_eq!(read_audits(market.path()).unwrap(), []);
    let saved = save_audit(
        market.path(),
        AuditEvidence::new(result(1, Verdict::Fits, 5), Vec::new(), Vec::new()),
    );
    let saved = saved.unwrap();
    assert_eq!(read_audits(market.path()).unwrap(), [saved.clone()]);
    let path = market.path().join(saved.evidence.unwrap());
    let evidence = AuditEvidence::read(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(evidence.result, result(1, Verdict::Fits, 5));
    assert_eq!(AuditEvidence::read(b"{}"), None);
    for at in 6..6 + RESULTS_MAX as u64 {
        let more = AuditEvidence::new(result(2, Verdict::Fits, at), Vec::new(), Vec::new());
        save_audit(market.path(), more).unwrap();
    }
    let left = read_audits(market.path()).unwrap();
    assert_eq!((left.len(), left[0].at), (RESULTS_MAX, 6));
    assert!(!path.exists());
}

#[test]
fn the_latest_verdict_holds_and_a_short_audit_changes_none() {
    use Verdict::{DoesNotFit, Fits, NotEnough};
    let latest = |verdicts: &[Verdict]| {
        let each = verdicts.iter().zip(1..);
        let results = each.map(|(verdict, at)| result(1, *verdict, at)).collect();
        let latest: Vec<AuditResult> = latest_audits(results).into_values().collect();
        (latest[0].tally.verdict, latest[0].at)
    };
    assert_eq!(latest(&[Fits, DoesNotFit]), (DoesNotFit, 2));
    assert_eq!(latest(&[DoesNotFit, NotEnough]), (DoesNotFit, 1));
    assert_eq!(latest(&[DoesNotFit, NotEnough, Fits]), (Fits, 3));
    assert_eq!(latest(&[NotEnough, NotEnough]), (NotEnough, 2));
}

#[test]
fn only_providers_that_do_not_fit_are_left() {
    let market = tempfile::tempdir().unwrap();
    for (provider, verdict) in [(1, Verdict::Fits), (2, Verdict::DoesNotFit)] {
        let about = result(provider, verdict, u64::from(provider));
        save_audit(
            market.path(),
            AuditEvidence::new(about, Vec::new(), Vec::new()),
        )
        .unwrap();
    }
    let left = read_distrusted(market.path()).unwrap();
    assert_eq!(
        left,
        BTreeSet::from([(MODEL.to_owned(), AccountKey([2; 32]))])
    );
}
