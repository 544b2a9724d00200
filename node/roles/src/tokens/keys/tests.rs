//! Tests the keys in short scripts, and compares them with a naive model in random histories.

use proptest::prelude::*;

use super::*;

const DAY: Millis = Millis(24 * 60 * 60 * 1_000);

fn hash_of(name: &str) -> ContentId {
    ContentId::for_content(name.as_bytes())
}

fn terms(name: &str, budget: Option<u64>, period: BudgetPeriod) -> KeyTerms {
    KeyTerms {
        name: name.parse().unwrap(),
        hash: hash_of(name),
        issued: Millis(0),
        budget: budget.map(|credits| KeyBudget {
            credits: Credits(credits),
            period,
        }),
        models: Vec::new(),
        requests_per_minute: None,
        tokens_per_minute: None,
        requests_at_once: REQUESTS_AT_ONCE,
        is_revoked: false,
    }
}

fn book_of(terms: KeyTerms) -> (KeyBook, KeyId) {
    let key = terms.id();
    (KeyBook::restore(vec![terms], &[]), key)
}

fn account(book: &KeyBook, now: Millis) -> KeyAccount {
    book.accounts(now)[0].1
}

#[test]
fn a_hundred_requests_at_once_never_spend_more_than_the_budget() {
    let mut all = terms("alice", Some(1_000), BudgetPeriod::Whole);
    all.requests_at_once = 100;
    let (mut book, key) = book_of(all);
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        let request = book.admit(DAY, key, 9).unwrap();
        match book.reserve(DAY, request, Credits(30)) {
            Ok(fact) => {
                assert!(fact.is_some());
                open.push(request);
            }
            Err(KeyRefusal::Held { held, left, .. }) => {
                assert_eq!((held, left), (Credits(990), Credits(10)));
                assert_eq!(
                    book.charge(request, Credits(30), TokenCount::default()),
                    None
                );
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((open.len(), refused), (33, 67));
    for request in open {
        // One that costs more than it said is charged what was reserved.
        book.charge(request, Credits(90), TokenCount::default());
        assert_eq!(
            book.charge(request, Credits(90), TokenCount::default()),
            None
        );
    }
    assert_eq!(account(&book, DAY).usage.spent, Credits(990));
    assert_eq!(account(&book, DAY).left, Some(Credits(10)));
    let request = book.admit(DAY, key, 9).unwrap();
    let over = book.reserve(DAY, request, Credits(11)).unwrap_err();
    assert!(matches!(over, KeyRefusal::Budget { left, .. } if left == Credits(10)));
    assert_eq!(
        over.to_string(),
        "the key's budget of 0.001 credits does not allow the request: 0.00099 are spent, and it \
         can cost 0.000011"
    );
    assert!(book.reserve(DAY, request, Credits(10)).is_ok());
}

#[test]
fn a_budget_begins_anew_with_its_period_and_not_when_the_clock_goes_back() {
    let (mut book, key) = book_of(terms("alice", Some(100), BudgetPeriod::Day));
    let spend = |book: &mut KeyBook, now, credits| {
        let request = book.admit(now, key, 0)?;
        let reserved = book.reserve(now, request, Credits(credits));
        book.charge(request, Credits(credits), TokenCount::default());
        reserved.map(drop)
    };
    spend(&mut book, DAY, 90).unwrap();
    assert!(spend(&mut book, DAY, 11).is_err());
    // A request that began yesterday and goes on today is paid by today.
    let over_night = book.admit(DAY, key, 0).unwrap();
    let next = Millis(2 * DAY.0);
    assert_eq!(account(&book, next).left, Some(Credits(100)));
    book.reserve(next, over_night, Credits(60)).unwrap();
    assert!(spend(&mut book, next, 50).is_err());
    assert!(spend(&mut book, DAY, 50).is_err(), "yesterday is over");
    book.charge(over_night, Credits(10), TokenCount::default());
    spend(&mut book, next, 50).unwrap();
    assert_eq!(account(&book, next).usage.spent, Credits(150));
    assert_eq!(account(&book, next).usage.period_spent, Credits(60));
    // With nothing left, a request is not even admitted, where it could wait for a slot.
    spend(&mut book, next, 40).unwrap();
    assert!(matches!(
        book.admit(next, key, 0),
        Err(KeyRefusal::Budget {
            left: Credits(0),
            ..
        })
    ));
}

#[test]
fn a_rate_counts_requests_and_tokens_and_gives_unused_ones_back() {
    let mut limited = terms("alice", None, BudgetPeriod::Whole);
    (limited.requests_per_minute, limited.tokens_per_minute) = (Some(3), Some(100));
    let (mut book, key) = book_of(limited.clone());
    let first = book.admit(DAY, key, 90).unwrap();
    let tokens = book.admit(DAY, key, 20).unwrap_err();
    assert!(matches!(
        tokens,
        KeyRefusal::Rate {
            unit: RateUnit::Tokens,
            per_minute: 100,
            wait: Some(Millis(6_000))
        }
    ));
    let large = book.admit(DAY, key, 101).unwrap_err();
    assert!(matches!(large, KeyRefusal::Rate { wait: None, .. }));
    book.charge(
        first,
        Credits(0),
        TokenCount {
            input: 4,
            cached: 0,
            output: 6,
        },
    );
    book.admit(DAY, key, 90).unwrap();
    // What a rate has left outlives another look at the terms.
    book.set_terms(vec![limited.clone()]);
    book.admit(DAY, key, 0).unwrap();
    let often = book.admit(DAY, key, 0).unwrap_err();
    assert_eq!(often.to_string(), "the key allows 3 requests a minute");
    book.admit(Millis(DAY.0 + 20_000), key, 0).unwrap();
    limited.is_revoked = true;
    book.set_terms(vec![limited]);
    assert_eq!(
        book.admit(Millis(2 * DAY.0), key, 0),
        Err(KeyRefusal::Unknown)
    );
    assert!(book.find_key(hash_of("alice")).is_none() && !book.has_keys());
}

#[test]
fn a_key_has_so_many_open_requests_and_another_key_its_own() {
    let [mut few, other] = ["alice", "bob"].map(|name| terms(name, None, BudgetPeriod::Whole));
    few.requests_at_once = 2;
    let (key, other_key) = (few.id(), other.id());
    let mut book = KeyBook::restore(vec![few, other], &[]);
    let first = book.admit(DAY, key, 9).unwrap();
    // One that has reserved and one that waits for a slot count alike.
    book.reserve(DAY, first, Credits(30)).unwrap();
    book.admit(DAY, key, 9).unwrap();
    let third = book.admit(DAY, key, 9).unwrap_err();
    assert_eq!(third, KeyRefusal::AtOnce { most: 2 });
    for _ in 0..REQUESTS_AT_ONCE {
        book.admit(DAY, other_key, 9).unwrap();
    }
    let most = REQUESTS_AT_ONCE;
    let more = book.admit(DAY, other_key, 9).unwrap_err();
    assert_eq!(more, KeyRefusal::AtOnce { most });
    book.charge(first, Credits(3), TokenCount::default());
    book.admit(DAY, key, 9).unwrap();
}

#[test]
fn a_key_of_an_older_file_has_the_usual_requests_at_once() {
    let whole = terms("alice", None, BudgetPeriod::Whole);
    let mut older = serde_json::to_value(&whole).unwrap();
    older.as_object_mut().unwrap().remove("requests_at_once");
    assert_eq!(serde_json::from_value::<KeyTerms>(older).unwrap(), whole);
}

#[test]
fn tokens_beyond_those_of_the_admission_are_taken_from_the_next_minute() {
    let mut limited = terms("alice", None, BudgetPeriod::Whole);
    limited.tokens_per_minute = Some(100);
    let (mut book, key) = book_of(limited);
    let request = book.admit(DAY, key, 90).unwrap();
    let used = TokenCount {
        input: 30,
        cached: 10,
        output: 100,
    };
    book.charge(request, Credits(0), used);
    assert!(matches!(
        book.admit(DAY, key, 10).unwrap_err(),
        KeyRefusal::Rate {
            // 50 beyond the admission, of which 10 were left.
            wait: Some(Millis(30_000)),
            ..
        }
    ));
    book.admit(Millis(DAY.0 + 30_000), key, 10).unwrap();
}

#[test]
fn a_key_is_found_by_its_whole_hash_and_revoked_in_the_middle_of_a_request() {
    let (mut book, key) = book_of(terms("alice", Some(100), BudgetPeriod::Whole));
    assert_eq!(book.find_key(hash_of("alice")).unwrap().id(), key);
    let mut near = *hash_of("alice").as_bytes();
    near[31] ^= 1;
    assert!(
        book.find_key(ContentId::from_bytes(near)).is_none(),
        "its id is the same"
    );
    let request = book.admit(DAY, key, 0).unwrap();
    book.reserve(DAY, request, Credits(40)).unwrap();
    book.set_terms(Vec::new());
    // Another provider must not get the request, not even within what is reserved.
    for credits in [50, 40, 10] {
        let reserved = book.reserve(DAY, request, Credits(credits));
        assert_eq!(reserved, Err(KeyRefusal::Unknown));
    }
    book.charge(request, Credits(20), TokenCount::default());
    book.set_terms(vec![terms("alice", Some(100), BudgetPeriod::Whole)]);
    assert_eq!(account(&book, DAY).left, Some(Credits(80)));
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    Begin {
        key: usize,
        credits: u64,
    },
    Raise {
        place: usize,
        more: u64,
    },
    End {
        place: usize,
        cost: u64,
    },
    Wait {
        hours: u64,
    },
    /// The process dies, and this part of its facts is on disk.
    Crash {
        lost: usize,
    },
    Compact,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 1..60_u64).prop_map(|(key, credits)| Step::Begin { key, credits }),
        2 => (0..9_usize, 1..40_u64).prop_map(|(place, more)| Step::Raise { place, more }),
        4 => (0..9_usize, 0..90_u64).prop_map(|(place, cost)| Step::End { place, cost }),
        1 => (1..40_u64).prop_map(|hours| Step::Wait { hours }),
        1 => (0..4_usize).prop_map(|lost| Step::Crash { lost }),
        1 => Just(Step::Compact),
    ]
}

/// A request as the naive model knows it: its key, its day, what is reserved, and what it costs
/// once it is over.
#[derive(Clone, Debug)]
struct NaiveRequest {
    id: KeyedRequestId,
    key: usize,
    day: u64,
    reserved: u64,
    cost: Option<u64>,
}

impl NaiveRequest {
    fn counts(&self) -> u64 {
        self.cost.unwrap_or(self.reserved)
    }
}

const BUDGETS: [(u64, BudgetPeriod); 3] = [
    (100, BudgetPeriod::Day),
    (400, BudgetPeriod::Whole),
    (250, BudgetPeriod::Day),
];

fn used(requests: &[NaiveRequest], key: usize, day: u64) -> u64 {
    let is_whole = BUDGETS[key].1 == BudgetPeriod::Whole;
    let of_key = requests.iter().filter(|it| it.key == key);
    let counted = of_key.filter(|it| is_whole || it.day == day);
    counted.map(NaiveRequest::counts).sum()
}

fn play(steps: Vec<Step>) {
    let names = ["a", "b", "c"];
    let all = || -> Vec<KeyTerms> {
        let each = names.iter().zip(BUDGETS);
        each.map(|(name, (budget, period))| terms(name, Some(budget), period))
            .collect()
    };
    let ids = names.map(|name| KeyId::of_hash(hash_of(name)));
    let mut book = KeyBook::restore(all(), &[]);
    let mut requests: Vec<NaiveRequest> = Vec::new();
    // What is on disk: a reservation always is, a charge may be lost with the process.
    let mut disk: Vec<KeyFact> = Vec::new();
    let mut now = DAY;
    for step in steps {
        let day = now.0 / DAY.0;
        let open: Vec<usize> = (0..requests.len())
            .filter(|at| requests[*at].cost.is_none())
            .collect();
        match step {
            Step::Begin { key, credits } => {
                let fits = used(&requests, key, day) + credits <= BUDGETS[key].0;
                let admitted = book.admit(now, ids[key], 1);
                let is_left = used(&requests, key, day) < BUDGETS[key].0;
                assert_eq!(admitted.is_ok(), is_left);
                let Ok(id) = admitted else {
                    continue;
                };
                let reserved = book.reserve(now, id, Credits(credits));
                assert_eq!(reserved.is_ok(), fits);
                match reserved {
                    Ok(fact) => {
                        disk.extend(fact);
                        requests.push(NaiveRequest {
                            id,
                            key,
                            day,
                            reserved: credits,
                            cost: None,
                        });
                    }
                    Err(_) => assert_eq!(book.charge(id, Credits(1), TokenCount::default()), None),
                }
            }
            Step::Raise { place, more } if !open.is_empty() => {
                let at = open[place % open.len()];
                let NaiveRequest { id, key, .. } = requests[at];
                let needed = requests[at].reserved + more;
                let mut raised = requests.clone();
                (raised[at].reserved, raised[at].day) = (needed, day);
                let fits = used(&raised, key, day) <= BUDGETS[key].0;
                let reserved = book.reserve(now, id, Credits(needed));
                assert_eq!(reserved.is_ok(), fits);
                if let Ok(fact) = reserved {
                    disk.extend(fact);
                    requests = raised;
                }
            }
            Step::End { place, cost } if !open.is_empty() => {
                let request = &mut requests[open[place % open.len()]];
                disk.extend(book.charge(request.id, Credits(cost), TokenCount::default()));
                request.cost = Some(cost.min(request.reserved));
            }
            Step::Wait { hours } => now.0 += hours * 3_600_000,
            Step::Crash { lost } => {
                for _ in 0..lost {
                    let Some(KeyFact::Charged { request, .. }) = disk.last() else {
                        break;
                    };
                    let lost = requests.iter_mut().rfind(|it| it.id == *request);
                    lost.expect("it is known").cost = None;
                    disk.pop();
                }
                book = KeyBook::restore(all(), &disk);
                disk.extend(book.charge_abandoned());
                for request in &mut requests {
                    request.cost.get_or_insert(request.reserved);
                }
            }
            Step::Compact => {
                let facts = book.to_facts();
                // A book from the shorter facts goes on as this one.
                let restored = KeyBook::restore(all(), &facts);
                assert_eq!(restored.to_facts(), facts);
                disk = facts;
            }
            Step::Raise { .. } | Step::End { .. } => {}
        }
        let day = now.0 / DAY.0;
        for (key, (terms, account)) in book.accounts(now).iter().enumerate() {
            let key = ids.iter().position(|id| *id == terms.id()).unwrap_or(key);
            let expected = BUDGETS[key].0 - used(&requests, key, day);
            assert_eq!(account.left, Some(Credits(expected)), "{key}");
            let ended = requests.iter().filter(|it| it.key == key);
            let spent: u64 = ended.filter_map(|it| it.cost).sum();
            assert_eq!(account.usage.spent, Credits(spent));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_book_counts_as_a_naive_one_and_survives_crashes(
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        play(steps);
    }
}
