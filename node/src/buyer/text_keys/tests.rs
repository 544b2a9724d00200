//! Tests the keys on disk with many requests at once, a server that is killed, and a file that is
//! cut.

use std::fs;

use souk_market::Credits;
use souk_roles::tokens::counting::TokenCount;
use souk_roles::tokens::text::{Message, Role};

use super::terms_file::TERMS_FILE;
use super::*;

fn new_key(name: &str, budget: Option<u64>) -> NewKey {
    NewKey {
        name: name.parse().unwrap(),
        budget: budget.map(|credits| KeyBudget {
            credits: Credits(credits),
            period: BudgetPeriod::Whole,
        }),
        models: Vec::new(),
        requests_per_minute: None,
        tokens_per_minute: None,
        requests_at_once: REQUESTS_AT_ONCE,
    }
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("buyer")).unwrap();
    folder
}

fn request() -> TextRequest {
    TextRequest {
        messages: vec![Message {
            role: Role::User,
            content: "what is a market".to_owned(),
        }],
        tokens_max: 10,
        ..TextRequest::default()
    }
}

fn bill(cost: u64) -> TextBill {
    TextBill {
        count: TokenCount {
            input: 4,
            cached: 0,
            output: cost,
        },
        cost: Credits(cost),
    }
}

fn spent(folder: &Path) -> (Credits, Credits) {
    let book = read_book(folder).unwrap();
    let accounts = book.accounts(now());
    (accounts[0].1.usage.spent, accounts[0].1.held)
}

/// Sends one request that costs `cost` and at most `worst`; none if the key refuses it, at once or
/// when it reserves.
async fn spend(keys: &TextKeys, key: KeyId, worst: u64, cost: u64) -> Option<()> {
    let keyed = keys.admit(key, &request()).ok()?;
    keyed.cover(Credits(worst)).await.ok()?;
    let (billed, answer) = PendingBill::channel();
    keyed.on_sent(bill(worst), answer);
    tokio::task::yield_now().await;
    billed.send(bill(cost));
    Some(())
}

#[tokio::test]
async fn keys_are_issued_found_and_revoked_while_a_server_runs() {
    let folder = folder();
    let keys = TextKeys::open(folder.path(), LogClock::default()).unwrap();
    let (first, terms) = issue_key(folder.path(), new_key("alice", Some(9))).unwrap();
    assert!(
        first.starts_with("sk-souk-") && first.len() == 72,
        "{first}"
    );
    let stored = fs::read_to_string(folder.path().join(TERMS_FILE)).unwrap();
    assert!(!stored.contains(&first[8..]), "only its hash is stored");
    assert_eq!(keys.find_key(&first).unwrap().id(), terms.id());
    assert!(keys.find_key(&first[1..]).is_none() && keys.find_key("").is_none());
    let again = issue_key(folder.path(), new_key("alice", None)).unwrap_err();
    assert!(matches!(again, IssueError::NameUsed { .. }), "{again}");
    revoke_key(folder.path(), &terms.name).unwrap();
    keys.refresh().unwrap();
    assert!(keys.find_key(&first).is_none());
    assert!(revoke_key(folder.path(), &terms.name).is_err());
    // The name is free again, for another key with a budget of its own.
    let (second, _) = issue_key(folder.path(), new_key("alice", None)).unwrap();
    assert!(keys.find_key(&second).is_some());
    assert_eq!(read_terms(folder.path()).unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_requests_at_once_stay_within_the_budget() {
    let folder = folder();
    let (_, terms) = issue_key(folder.path(), new_key("alice", Some(1_000))).unwrap();
    let keys = TextKeys::open(folder.path(), LogClock::default()).unwrap();
    let mut total = 0;
    for _ in 0..5 {
        let asked = (0..100).map(|_| {
            let (keys, key) = (keys.clone(), terms.id());
            tokio::spawn(async move { spend(&keys, key, 90, 7).await })
        });
        for asked in asked.collect::<Vec<_>>() {
            total += 7 * u64::from(asked.await.unwrap().is_some());
        }
    }
    // What the worst cases left unused is spent one after the other.
    while spend(&keys, terms.id(), 90, 7).await.is_some() {
        total += 7;
    }
    keys.close().await;
    assert!(total > 900 && total <= 1_000, "{total}");
    assert_eq!(spent(folder.path()), (Credits(total), Credits(0)));
}

#[tokio::test]
async fn a_request_pays_for_all_its_parts_and_the_unused_rest_is_free_again() {
    let folder = folder();
    let (_, terms) = issue_key(folder.path(), new_key("alice", Some(100))).unwrap();
    let keys = TextKeys::open(folder.path(), LogClock::default()).unwrap();
    let keyed = keys.admit(terms.id(), &request()).unwrap();
    keyed.cover(Credits(60)).await.unwrap();
    let (billed, answer) = PendingBill::channel();
    keyed.on_sent(bill(60), answer);
    // As long as the first part is not billed, the second one finds only the rest.
    let refused = keyed.cover(Credits(50)).await.unwrap_err();
    assert!(
        matches!(
            refused,
            CoverError::Refused {
                left: Credits(40),
                ..
            }
        ),
        "{refused}"
    );
    billed.send(bill(20));
    keyed.cover(Credits(50)).await.unwrap();
    assert_eq!(spent(folder.path()), (Credits(0), Credits(70)));
    // The task of the second part panics before the reader leaves, and that of another request's
    // part after it.
    let (billed, answer) = PendingBill::channel();
    keyed.on_sent(bill(50), answer);
    drop(billed);
    drop(keyed);
    let other = keys.admit(terms.id(), &request()).unwrap();
    other.cover(Credits(25)).await.unwrap();
    let (billed, answer) = PendingBill::channel();
    other.on_sent(bill(25), answer);
    drop(other);
    drop(billed);
    keys.close().await;
    assert_eq!(spent(folder.path()), (Credits(95), Credits(0)));
}

#[tokio::test]
async fn a_request_whose_reservation_is_not_on_disk_covers_nothing_more() {
    let folder = folder();
    let (_, terms) = issue_key(folder.path(), new_key("alice", Some(100))).unwrap();
    let keys = TextKeys::open(folder.path(), LogClock::default()).unwrap();
    // Its writer has ended, so that no fact reaches the disk.
    keys.close().await;
    let keyed = keys.admit(terms.id(), &request()).unwrap();
    for worst in [60, 50, 60] {
        let refused = keyed.cover(Credits(worst)).await.unwrap_err();
        assert!(matches!(refused, CoverError::NotWritten(_)), "{refused}");
    }
    drop(keyed);
    assert_eq!(spent(folder.path()), (Credits(0), Credits(0)));
}

#[tokio::test]
async fn days_begin_by_the_clock_of_the_market() {
    let folder = folder();
    let mut new = new_key("alice", Some(100));
    new.budget = new.budget.map(|budget| KeyBudget {
        period: BudgetPeriod::Day,
        ..budget
    });
    let (_, terms) = issue_key(folder.path(), new).unwrap();
    let day = |number: u64| Millis(number * 24 * 60 * 60 * 1_000);
    let clock = LogClock::default();
    // This machine's clock is years ahead.
    clock.set_time(day(100), now());
    let keys = TextKeys::open(folder.path(), clock.clone()).unwrap();
    spend(&keys, terms.id(), 90, 90).await.unwrap();
    assert_eq!(spend(&keys, terms.id(), 90, 90).await, None);
    clock.set_time(day(101), now());
    spend(&keys, terms.id(), 90, 90).await.unwrap();
    let (_, account) = keys.find_account(terms.id()).unwrap();
    assert_eq!(account.usage.period, 101);
    keys.close().await;
}

#[tokio::test]
async fn a_request_is_open_until_it_is_billed() {
    let folder = folder();
    let mut new = new_key("alice", None);
    new.requests_at_once = 1;
    let (_, terms) = issue_key(folder.path(), new).unwrap();
    let keys = TextKeys::open(folder.path(), LogClock::default()).unwrap();
    let first = keys.admit(terms.id(), &request()).unwrap();
    first.cover(Credits(9)).await.unwrap();
    let (sender, billed) = PendingBill::channel();
    first.on_sent(bill(9), billed);
    // Its reader has left, and the engine still answers.
    drop(first);
    let refused = keys.admit(terms.id(), &request()).unwrap_err();
    assert_eq!(refused, KeyRefusal::AtOnce { most: 1 });
    sender.send(bill(3));
    let mut open = keys.0.open.subscribe();
    open.wait_for(|open| *open == 0).await.unwrap();
    keys.admit(terms.id(), &request()).unwrap();
}

#[tokio::test]
async fn one_server_holds_the_keys_of_a_folder() {
    let folder = folder();
    let (sent, terms) = issue_key(folder.path(), new_key("alice", None)).unwrap();
    let first = TextKeys::open(folder.path(), LogClock::default()).unwrap();
    let second = TextKeys::open(folder.path(), LogClock::default()).unwrap();
    assert!(second.is_held_elsewhere() && second.find_key(&sent).is_none());
    spend(&first, terms.id(), 9, 3).await.unwrap();
    first.close().await;
    drop(first);
    assert!(second.find_key(&sent).is_some() && !second.is_held_elsewhere());
    spend(&second, terms.id(), 9, 3).await.unwrap();
    second.close().await;
    assert_eq!(spent(folder.path()).0, Credits(6));
}

/// What a server that starts with these bytes of the usage counts as spent.
async fn spent_after_restart(terms: &[u8], usage: &[u8]) -> Credits {
    let folder = folder();
    fs::write(folder.path().join(TERMS_FILE), terms).unwrap();
    fs::write(folder.path().join(USAGE_FILE), usage).unwrap();
    let keys = TextKeys::open(folder.path(), LogClock::default()).unwrap();
    keys.close().await;
    let (spent, held) = spent(folder.path());
    assert_eq!(held, Credits(0));
    spent
}

#[tokio::test]
async fn a_file_that_is_cut_anywhere_counts_what_was_promised_before() {
    let folder = folder();
    let (_, terms) = issue_key(folder.path(), new_key("alice", Some(1_000))).unwrap();
    let keys = TextKeys::open(folder.path(), LogClock::default()).unwrap();
    for cost in [5, 11, 2] {
        spend(&keys, terms.id(), 20, cost).await.unwrap();
    }
    let open = keys.admit(terms.id(), &request()).unwrap();
    open.cover(Credits(40)).await.unwrap();
    open.cover(Credits(70)).await.unwrap();
    let issued = fs::read(folder.path().join(TERMS_FILE)).unwrap();
    let usage = fs::read(folder.path().join(USAGE_FILE)).unwrap();
    // The server wrote an empty usage of each key when it started.
    let expected = [0, 0, 20, 5, 25, 16, 36, 18, 58, 88];
    let mut seen = Vec::new();
    for end in (0..usage.len()).step_by(5).chain([usage.len()]) {
        let lines = usage[..end].iter().filter(|byte| **byte == b'\n').count();
        let spent = spent_after_restart(&issued, &usage[..end]).await;
        assert_eq!(spent, Credits(expected[lines]), "{end}");
        seen.push(lines);
    }
    seen.dedup();
    assert_eq!(seen, (0..expected.len()).collect::<Vec<_>>());
    // A changed byte is damage, and no server starts with it.
    let mut changed = usage.clone();
    let at = usage.len() / 2;
    changed[at] ^= 1;
    fs::write(folder.path().join("buyer/other.jsonl"), &changed).unwrap();
    let read = FactLog::read::<KeyFact>(&folder.path().join("buyer/other.jsonl"), USAGE_FORMAT);
    assert!(
        matches!(read, Err(FactLogError::Damaged { .. })),
        "{read:?}"
    );
}
