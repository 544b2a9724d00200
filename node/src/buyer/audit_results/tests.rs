//! Tests how the results of audits are saved, pruned and forgotten, and which providers they
//! distrust.

use super::*;

const MODEL: &str = "qwen/qwen3-8b";

fn result(provider: u8, verdict: Verdict, at: u64) -> AuditResult {
    let tally = AuditTally {
        verdict,
        tokens: 300,
        own_draws: 290,
        seeded: 0,
        penalised: 0,
        evasive_answers: 0,
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
    assert_eq!(read_audits(market.path()).unwrap(), (Vec::new(), 0));
    let saved = save_audit(
        market.path(),
        AuditEvidence::new(result(1, Verdict::Fits, 5), Vec::new(), Vec::new()),
    );
    let saved = saved.unwrap();
    assert_eq!(
        read_audits(market.path()).unwrap().0,
        std::slice::from_ref(&saved)
    );
    let path = market.path().join(saved.evidence.unwrap());
    let evidence = AuditEvidence::read(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(evidence.result, result(1, Verdict::Fits, 5));
    assert_eq!(AuditEvidence::read(b"{}"), None);
    let evidence = |provider, verdict, at| {
        AuditEvidence::new(result(provider, verdict, at), Vec::new(), Vec::new())
    };
    save_audit(market.path(), evidence(1, Verdict::NotEnough, 4)).unwrap();
    for at in 6..6 + RESULTS_MAX as u64 {
        save_audit(market.path(), evidence(2, Verdict::Fits, at)).unwrap();
    }
    // The verdict of the first provider still holds, and no newer one says so.
    let (left, damaged) = read_audits(market.path()).unwrap();
    let oldest: Vec<u64> = left.iter().take(3).map(|it| it.at).collect();
    assert_eq!((left.len(), damaged), (RESULTS_MAX + 1, 0));
    assert_eq!(oldest, [5, 6, 7]);
    assert!(path.exists());
}

#[test]
fn a_damaged_result_is_counted_and_a_forgotten_one_is_gone() {
    let market = tempfile::tempdir().unwrap();
    let about = result(2, Verdict::DoesNotFit, 7);
    let id = about.id();
    let saved = save_audit(
        market.path(),
        AuditEvidence::new(about, Vec::new(), Vec::new()),
    );
    let folder = market.path().join(AUDITS_FOLDER);
    fs::write(folder.join("8.json"), "{").unwrap();
    let (left, damaged) = read_distrusted(market.path()).unwrap();
    assert_eq!((left.len(), damaged), (1, 1));
    assert!(!forget_audit(market.path(), "../audits/7").unwrap());
    assert!(forget_audit(market.path(), &id).unwrap());
    assert!(!forget_audit(market.path(), &id).unwrap());
    assert!(read_distrusted(market.path()).unwrap().0.is_empty());
    assert!(
        !market
            .path()
            .join(saved.unwrap().evidence.unwrap())
            .exists()
    );
}

#[test]
fn an_audit_that_leaves_nobody_distrusts_nobody_and_clears_nobody() {
    let market = tempfile::tempdir().unwrap();
    let save = |verdict, at, leaves| {
        let about = AuditResult {
            leaves,
            ..result(2, verdict, at)
        };
        save_audit(
            market.path(),
            AuditEvidence::new(about, Vec::new(), Vec::new()),
        )
        .unwrap();
        read_distrusted(market.path()).unwrap().0.len()
    };
    assert_eq!(save(Verdict::DoesNotFit, 1, false), 0);
    assert_eq!(save(Verdict::DoesNotFit, 2, true), 1);
    assert_eq!(save(Verdict::DoesNotFit, 3, false), 1);
    assert_eq!(save(Verdict::Fits, 4, true), 0);
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
        left.0,
        BTreeSet::from([(MODEL.to_owned(), AccountKey([2; 32]))])
    );
}
