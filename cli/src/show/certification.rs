//! Describes how far validators have certified a market's history (signed its head), which
//! validators lag, and what the user can do. `souk market verify` and commands that check proofs
//! use it.

use serde_json::{Value, json};
use souk_folder::clock::unix_ms;
use souk_node::client::history::{GatheredHistory, HistoryCheck, SignedHead, ValidatorHeads};
use souk_node::market::AccountKey;

use super::{format_seconds, print_notice, short_id, time_of_day};

/// How long after the last certified head validators can sign others before it has stalled. Even an
/// idle market has a head every ten seconds.
const LAG_MS_MAX: u64 = 15_000;

/// The age from which a last certified head shows that nobody signs. It depends on this machine's
/// clock, so it allows more than the lag does.
const SILENCE_MS_MAX: u64 = 30_000;

/// How much older the last head of a validator that keeps up can be than the last one of all.
const LATE_MS_MAX: u64 = 5_000;

/// The state of certification: the heads that validators signed, at a moment.
pub struct Certification<'a> {
    check: &'a HistoryCheck,
    answers: &'a [ValidatorHeads],
    now_ms: u64,
}

/// A validator that has not signed the last head, or does not answer.
struct Laggard<'a> {
    raft_id: u64,
    signed: Option<&'a SignedHead>,
    fault: Option<String>,
}

impl<'a> Certification<'a> {
    /// Returns what signed heads show at this time; `answers` has the validators that were asked.
    pub fn new(check: &'a HistoryCheck, answers: &'a [ValidatorHeads], now_ms: u64) -> Self {
        Self {
            check,
            answers,
            now_ms,
        }
    }

    /// Returns what the answers of validators show now.
    pub fn of_history(history: &'a GatheredHistory) -> Self {
        Self::new(&history.check, &history.answers, unix_ms())
    }

    /// Returns whether validators went on to sign heads and certified none of them.
    pub fn is_behind(&self) -> bool {
        let time = |signed: Option<&SignedHead>| signed.map_or(0, |it| it.head().time.0);
        let certified = time(self.check.find_certified());
        time(self.latest()).saturating_sub(certified) >= LAG_MS_MAX
    }

    /// Returns whether too few validators answer to certify another head, or nothing has been
    /// certified for so long that something is wrong.
    pub fn is_stalled(&self) -> bool {
        let silent = self.answers.iter();
        let silent = silent.filter(|it| it.notes.is_err() && !self.signed_latest(it.raft_id));
        let silent = silent.count();
        let running = self.check.members.len().saturating_sub(silent);
        running < self.check.needed || self.is_behind() || self.age_ms() >= SILENCE_MS_MAX
    }

    /// Returns the age of the last certified head in milliseconds, by this machine's clock.
    pub fn age_ms(&self) -> u64 {
        let time = self.check.find_certified().map(|it| it.head().time.0);
        self.now_ms.saturating_sub(time.unwrap_or(0))
    }

    /// Returns how the first contradiction between signed heads looks, if there is one.
    pub fn describe_contradiction(&self) -> Option<String> {
        let fork = self.check.forks.first()?;
        let each = fork.heads.iter().map(|signed| {
            let signers = signed.signers.iter().map(|by| self.name_validator(*by));
            let signers: Vec<String> = signers.collect();
            let root = signed.head().root.to_string();
            format!("root {} by {}", &root[..16], signers.join(", "))
        });
        let each: Vec<String> = each.collect();
        let size = fork.heads[0].head().size;
        Some(format!(
            "validators signed two histories or states of {size} steps: {}",
            each.join("; ")
        ))
    }

    /// Returns how far the history is certified and signed, and who has not signed.
    pub fn describe(&self) -> String {
        let certified = match self.check.find_certified() {
            Some(signed) => format!("certified up to {}", self.describe_head(signed)),
            None => "nothing is certified".to_owned(),
        };
        let signed = match self.latest() {
            Some(latest) => format!("signed up to {}", self.describe_head(latest)),
            None => "nothing is signed".to_owned(),
        };
        let (needed, members) = (self.check.needed, self.check.members.len());
        let laggards = self.laggards();
        let missing = match &laggards[..] {
            [] => "all have signed the last head".to_owned(),
            laggards => {
                let each = laggards.iter().map(|it| self.describe_laggard(it));
                each.collect::<Vec<_>>().join("; ")
            }
        };
        let contradiction = self.describe_contradiction().map(|it| format!("; {it}"));
        format!(
            "{certified}, {signed}; {needed} of {members} validators must sign the same head: \
             {missing}{}",
            contradiction.unwrap_or_default()
        )
    }

    /// Returns what a user can do.
    pub fn suggest_remedy(&self) -> String {
        let has_other = |it: &Laggard<'_>| it.fault.is_none() && self.signed_another(it.signed);
        let laggards = self.laggards();
        if laggards.iter().any(has_other) {
            return "trade no more: `souk market verify` saves the heads that contradict each \
                    other, for the operators"
                .to_owned();
        }
        let silent: Vec<String> = laggards.iter().map(|it| it.raft_id.to_string()).collect();
        match &silent[..] {
            [] => {
                "try again; if it stays so, check this machine's clock, and ask the operators why \
                   the market stands still"
                    .to_owned()
            }
            silent => format!(
                "try again; if it stays so, ask the operators to start validator {} again, or to \
                 replace it with `souk validator add` and `souk validator remove`; what is \
                 certified already stays valid",
                silent.join(", ")
            ),
        }
    }

    /// Returns, for programs, what each validator signed last.
    pub fn validators_to_json(&self) -> Value {
        let of_member = |(raft_id, account): (&u64, &AccountKey)| {
            let signed = self.check.latest_of(*raft_id).map(SignedHead::head);
            json!({
                "validator": raft_id,
                "account": account.to_string(),
                "signed_size": signed.map(|head| head.size),
                "signed_root": signed.map(|head| head.root.to_string()),
                "fault": self.fault_of(*raft_id),
            })
        };
        self.check.members.iter().map(of_member).collect()
    }

    /// Returns the largest head that so many signed that not all of them lie, if less than a third
    /// of the validators do; of several, that which most signed.
    fn latest(&self) -> Option<&'a SignedHead> {
        let honest = (self.check.members.len() + 1).saturating_sub(self.check.needed);
        let heads = self.check.heads.iter();
        let believed = heads.filter(|it| it.signers.len() >= honest);
        believed.max_by_key(|it| (it.head().size, it.signers.len()))
    }

    fn fault_of(&self, raft_id: u64) -> Option<String> {
        let answer = self.answers.iter().find(|it| it.raft_id == raft_id)?;
        answer.notes.as_ref().err().map(ToString::to_string)
    }

    fn signed_latest(&self, raft_id: u64) -> bool {
        self.latest()
            .is_some_and(|it| it.signers.contains(&raft_id))
    }

    /// Returns whether a validator signed a head about as late as the last one. Validators sign
    /// one after the other, and their answers are of different moments.
    fn keeps_up(&self, raft_id: u64) -> bool {
        let (Some(latest), Some(own)) = (self.latest(), self.check.latest_of(raft_id)) else {
            return false;
        };
        let is_late = own.head().time.0.saturating_add(LATE_MS_MAX) < latest.head().time.0;
        !is_late && !self.signed_another(Some(own))
    }

    fn laggards(&self) -> Vec<Laggard<'a>> {
        let laggard = |raft_id: &u64| {
            let fault = self.fault_of(*raft_id);
            // One that only this machine cannot reach still signs.
            let may_sign = self.signed_latest(*raft_id) && self.age_ms() < SILENCE_MS_MAX;
            let is_silent = fault.is_some() && !may_sign;
            (!self.keeps_up(*raft_id) || is_silent).then(|| Laggard {
                raft_id: *raft_id,
                signed: self.check.latest_of(*raft_id),
                fault,
            })
        };
        self.check.members.keys().filter_map(laggard).collect()
    }

    /// Returns whether a head contradicts the last one, which others signed.
    fn signed_another(&self, signed: Option<&SignedHead>) -> bool {
        let (Some(signed), Some(latest)) = (signed, self.latest()) else {
            return false;
        };
        signed.head().contradicts(&latest.head())
    }

    /// Returns a validator's number and the beginning of its account.
    fn name_validator(&self, raft_id: u64) -> String {
        let account = self.check.members.get(&raft_id).map(short_id);
        format!("validator {raft_id} ({})", account.unwrap_or_default())
    }

    fn describe_laggard(&self, laggard: &Laggard<'_>) -> String {
        let name = self.name_validator(laggard.raft_id);
        let signed = match laggard.signed {
            Some(signed) if self.signed_another(Some(signed)) => format!(
                "signed another root of {} steps, {}",
                signed.head().size,
                signed.head().root
            ),
            Some(signed) => format!("signed {} steps last", signed.head().size),
            None => "signed nothing that anybody shows".to_owned(),
        };
        match &laggard.fault {
            Some(fault) => format!("{name} does not answer ({fault}) and {signed}"),
            None => format!("{name} {signed}"),
        }
    }

    fn describe_head(&self, signed: &SignedHead) -> String {
        let (size, time_ms) = (signed.head().size, signed.head().time.0);
        let age = format_seconds(self.now_ms.saturating_sub(time_ms) as f64 / 1e3);
        format!("{size} steps at {} ({age} ago)", time_of_day(time_ms))
    }
}

/// Prints what is wrong with certification, if anything is.
pub fn warn_of_fault(history: &GatheredHistory) {
    let found = Certification::of_history(history);
    if found.is_stalled() || found.describe_contradiction().is_some() {
        print_notice(&format!(
            "note: {}. {}",
            found.describe(),
            found.suggest_remedy()
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use souk_node::client::broker::AttemptError;
    use souk_node::client::history::{HeadsError, TreeNote};
    use souk_node::market::{MarketId, SigningKey};

    use super::*;

    const MARKET: MarketId = MarketId([5; 32]);

    fn key(by: u64) -> SigningKey {
        SigningKey::from_bytes(&[u8::try_from(by).unwrap(); 32])
    }

    /// A head of so many steps, a second of the log's time each, that these validators signed.
    fn note(size: u64, root: char, signers: &[u64]) -> TreeNote {
        let (root, time) = (root.to_string().repeat(42), size * 1_000);
        let text = format!("souk/{MARKET}\n{size}\n{root}A=\nindex {size}\ntime {time}\n\n");
        let mut note = TreeNote::decode(text.as_bytes()).unwrap();
        for by in signers {
            note.insert(note.cosign(*by, size, &key(*by)));
        }
        note
    }

    fn judge(notes: &[TreeNote]) -> HistoryCheck {
        let members = (1..=4).map(|by| (by, AccountKey::from(&key(by))));
        let members: BTreeMap<u64, AccountKey> = members.collect();
        HistoryCheck::judge_notes(MARKET, members, notes)
    }

    fn answers(silent: &[u64]) -> Vec<ValidatorHeads> {
        let answer = |raft_id| ValidatorHeads {
            raft_id,
            notes: match silent.contains(&raft_id) {
                true => Err(HeadsError::Attempt(AttemptError::Timeout)),
                false => Ok(Vec::new()),
            },
        };
        (1..=4).map(answer).collect()
    }

    #[test]
    fn validators_that_stopped_are_named_with_what_they_signed_last() {
        let check = judge(&[note(100, 'A', &[1, 2, 3]), note(120, 'B', &[1, 2])]);
        let (answers, now_ms) = (answers(&[3, 4]), 125_000);
        let found = Certification::new(&check, &answers, now_ms);
        assert!(found.is_behind() && found.is_stalled());
        let accounts = [3, 4].map(|by| short_id(&AccountKey::from(&key(by))));
        let fault = AttemptError::Timeout;
        assert_eq!(
            found.describe(),
            format!(
                "certified up to 100 steps at 1970-01-01 00:01:40 (25.00 s ago), signed up to 120 \
                 steps at 1970-01-01 00:02:00 (5.00 s ago); 3 of 4 validators must sign the same \
                 head: validator 3 ({}) does not answer ({fault}) and signed 100 steps last; \
                 validator 4 ({}) does not answer ({fault}) and signed nothing that anybody shows",
                accounts[0], accounts[1]
            )
        );
        let remedy = found.suggest_remedy();
        assert!(remedy.contains("start validator 3, 4 again"), "{remedy}");
    }

    #[test]
    fn a_validator_that_signed_another_root_is_named() {
        let check = judge(&[note(120, 'A', &[1, 2]), note(120, 'B', &[4])]);
        let answers = answers(&[]);
        let found = Certification::new(&check, &answers, 120_000);
        assert!(found.is_stalled(), "nothing is certified");
        let text = found.describe();
        assert!(text.starts_with("nothing is certified, signed up to 120"));
        assert!(
            text.contains(") signed another root of 120 steps, 0410"),
            "{text}"
        );
        assert!(found.suggest_remedy().starts_with("trade no more"));
    }

    #[test]
    fn one_that_signs_ahead_of_all_others_holds_nothing_up() {
        let check = judge(&[note(100, 'A', &[1, 2, 3]), note(900, 'B', &[4])]);
        let answers = answers(&[]);
        let found = Certification::new(&check, &answers, 101_000);
        assert!(!found.is_stalled(), "{}", found.describe());
    }

    #[test]
    fn an_idle_market_that_is_whole_has_not_stalled() {
        let check = judge(&[note(100, 'A', &[1, 2, 3, 4])]);
        let answers = answers(&[]);
        let at = |now_ms| Certification::new(&check, &answers, now_ms).is_stalled();
        assert!(!at(112_000));
        assert!(at(131_000), "every ten seconds there is a head");
    }
}
