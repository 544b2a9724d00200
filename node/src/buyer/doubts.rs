//! Runs of a resumed stream that two providers do not have alike: neither is paid before others
//! have run what they differ in.
//!
//! What was not answered is asked again in any case, and what is answered with each part run twice
//! was made alike by two providers. So the answers that come decide: who made the same is paid.
//! What none of them bears out in time is not, and its provider is told why; the usage that it
//! notes is disputed, since silence would pay for it.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use souk_market::{Lease, Millis};
use souk_memory::{ContentId, Tensor};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::compare::{Tolerance, agree};
use super::session::Session;
use super::{Answer, Buyer, JobError, settle};
use crate::clock::unix_ms;

/// How long answers may take to decide where no note of usage is open: providers make one half a
/// minute after they were asked at the latest.
const DECIDED_WITHIN_MS: u64 = 25_000;

/// How often it is looked whether one is open. From then on it says how long there is: it counts as
/// accepted when its time is over.
const NOTES_PERIOD: Duration = Duration::from_millis(250);

/// The share of a note's time that is kept for disputing it, and the most that is.
const DISPUTED_WITHIN: u64 = 3;
const DISPUTED_WITHIN_MS: u64 = 10_000;

/// Outputs by name, in the order in which they were made.
pub(super) type Made = Vec<(String, ContentId)>;

/// A session, and what it made that nobody bears out yet.
struct Doubted {
    session: Session,
    left: Vec<(String, Tensor)>,
    /// When it is decided at the latest.
    until: Millis,
    /// The note that says so: when it counts as accepted.
    note: Option<Millis>,
}

/// The sessions of a resumed stream that are in doubt.
pub(super) struct Doubts {
    buyer: Buyer,
    tolerance: Tolerance,
    doubted: Vec<Doubted>,
    right: Vec<Session>,
    refusing: JoinSet<()>,
}

impl Doubts {
    pub(super) fn new(buyer: &Buyer, tolerance: Tolerance) -> Doubts {
        Doubts {
            buyer: buyer.clone(),
            tolerance,
            doubted: Vec::new(),
            right: Vec::new(),
            refusing: JoinSet::new(),
        }
    }

    /// Compares what two runs made apart from each other, the first of a name with the first of
    /// that name, and so on; with one run alone all of it is in doubt that was not `told`.
    pub(super) async fn compare(&mut self, first: Session, second: Option<Session>, told: &Made) {
        let sessions = [Some(first), second].into_iter().flatten();
        let sessions: Vec<Session> = sessions.collect();
        let fetching = (0..sessions.len()).map(|place| {
            let other = sessions.get(1 - place);
            let other = other.map_or(&[][..], |other| &other.finished.outputs);
            let apart = apart(&sessions[place].finished.outputs, &[told, other]);
            fetch(&self.buyer, &sessions[place], apart)
        });
        let fetched = join_all(fetching).await;
        let mut doubted = Vec::new();
        for (session, fetched) in sessions.into_iter().zip(fetched) {
            match fetched {
                Ok(left) => doubted.push(Doubted::new(session, left)),
                Err(error) => self.refuse(session, error.to_string()),
            }
        }
        if let [first, second] = &mut doubted[..] {
            leave_what_differs(&mut first.left, &mut second.left, self.tolerance);
        }
        self.doubted.extend(doubted);
        self.sort();
    }

    /// Refuses a session for what is known already.
    pub(super) fn refuse(&mut self, session: Session, why: String) {
        tracing::warn!(provider = %session.provider, why, "not signed");
        let buyer = self.buyer.clone();
        self.refusing
            .spawn(async move { settle::refuse(&buyer, session, why).await });
    }

    /// Passes answers on until no more come or nobody wants them, and decides by them; what is
    /// right comes back once whoever is refused knows it. Who noted its usage is decided while that
    /// can be disputed, however long ago it noted it.
    pub(super) async fn pass_on(
        mut self,
        mut answers: mpsc::Receiver<Answer>,
        to: mpsc::Sender<Answer>,
    ) -> Vec<Session> {
        let mut notes = tokio::time::interval(NOTES_PERIOD);
        loop {
            tokio::select! {
                answer = answers.recv() => {
                    let Some(answer) = answer else { break };
                    self.weigh(&answer);
                    if to.send(answer).await.is_err() {
                        break;
                    }
                }
                _ = notes.tick(), if !self.doubted.is_empty() => self.look_at_notes().await,
            }
        }
        drop(answers);
        let left = std::mem::take(&mut self.doubted);
        self.give_up(left);
        while self.refusing.join_next().await.is_some() {}
        self.right
    }

    /// What is right already.
    pub(super) fn take_right(&mut self) -> Vec<Session> {
        std::mem::take(&mut self.right)
    }

    fn weigh(&mut self, answer: &Answer) {
        let (outputs, tolerance) = (&answer.outputs, self.tolerance);
        for doubted in &mut self.doubted {
            let is_same = |(name, made): &(String, Tensor)| {
                let right = outputs.get(name);
                right.is_some_and(|right| agree(right, made, tolerance))
            };
            doubted.left.retain(|made| !is_same(made));
        }
        self.sort();
    }

    fn sort(&mut self) {
        let doubted = std::mem::take(&mut self.doubted).into_iter();
        let (left, right) = doubted.partition(|doubted| !doubted.left.is_empty());
        self.doubted = left;
        let right: Vec<Doubted> = right;
        self.right.extend(right.into_iter().map(|it| it.session));
    }

    /// Learns which notes are open, and gives up whoever's time is over.
    async fn look_at_notes(&mut self) {
        for doubted in &mut self.doubted {
            let known = self.buyer.broker().lease(doubted.session.start.lease).await;
            if let Ok(Some(Lease {
                note: Some(note), ..
            })) = known
            {
                doubted.on_note(note.accepted_at, Millis(unix_ms()));
            }
        }
        let now = Millis(unix_ms());
        let doubted = std::mem::take(&mut self.doubted).into_iter();
        let (late, left) = doubted.partition(|doubted| doubted.until <= now);
        self.doubted = left;
        self.give_up(late);
    }

    fn give_up(&mut self, late: Vec<Doubted>) {
        for Doubted { session, left, .. } in late {
            let names: BTreeSet<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
            let names: Vec<&str> = names.into_iter().collect();
            let why = format!(
                "{} of its results ({}) are neither another run's nor what was answered since",
                left.len(),
                names.join(", ")
            );
            self.refuse(session, why);
        }
    }
}

impl Doubted {
    fn new(session: Session, left: Vec<(String, Tensor)>) -> Doubted {
        Doubted {
            session,
            left,
            until: Millis(unix_ms().saturating_add(DECIDED_WITHIN_MS)),
            note: None,
        }
    }

    /// A note is open that counts as accepted then.
    fn on_note(&mut self, accepted_at: Millis, now: Millis) {
        if self.note != Some(accepted_at) {
            self.note = Some(accepted_at);
            self.until = decided_by(accepted_at, now);
        }
    }
}

/// When a run in doubt is decided at the latest whose provider has a note open: while there is time
/// to dispute it.
fn decided_by(accepted_at: Millis, now: Millis) -> Millis {
    let left = accepted_at.since(now).0;
    let kept = (left / DISPUTED_WITHIN).min(DISPUTED_WITHIN_MS);
    Millis(now.0.saturating_add(left - kept))
}

/// What of a run is in none of the others, in its order.
fn apart(made: &[(String, ContentId)], others: &[&[(String, ContentId)]]) -> Made {
    let known: BTreeSet<_> = others.iter().flat_map(|other| other.iter()).collect();
    let own = made.iter().filter(|made| !known.contains(made));
    own.cloned().collect()
}

async fn fetch(
    buyer: &Buyer,
    session: &Session,
    made: Made,
) -> Result<Vec<(String, Tensor)>, JobError> {
    let party = (session.provider, session.peer);
    let mut tensors = Vec::with_capacity(made.len());
    for (name, id) in made {
        let tensor = settle::fetch_one(buyer, party, &name, id).await?;
        tensors.push((name, tensor));
    }
    Ok(tensors)
}

/// Takes out of two runs what is the same but for rounding.
fn leave_what_differs(
    first: &mut Vec<(String, Tensor)>,
    second: &mut Vec<(String, Tensor)>,
    tolerance: Tolerance,
) {
    let mut place = 0;
    while place < first.len() {
        let (name, made) = &first[place];
        let of_name = |(other, _): &&(String, Tensor)| other == name;
        let nth = first[..place].iter().filter(of_name).count();
        let mut others = second.iter().enumerate();
        let twin = others.by_ref().filter(|(_, other)| of_name(other)).nth(nth);
        match twin {
            Some((at, (_, other))) if agree(made, other, tolerance) => {
                second.remove(at);
                first.remove(place);
            }
            _ => place += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(values: &[f32]) -> Vec<(String, Tensor)> {
        let one = |value: &f32| {
            let tensor = Tensor::from_vec([1], vec![*value]);
            ("y".to_owned(), tensor.unwrap())
        };
        values.iter().map(one).collect()
    }

    #[test]
    fn what_two_runs_have_alike_but_for_rounding_is_not_in_doubt() {
        let (mut first, mut second) = (made(&[1.0, 2.0, 3.0]), made(&[1.000_000_1, 7.0, 3.0, 4.0]));
        leave_what_differs(&mut first, &mut second, Tolerance(1e-5));
        assert_eq!(first, made(&[2.0]));
        assert_eq!(second, made(&[7.0, 4.0]));
    }

    #[test]
    fn who_noted_its_usage_is_decided_while_that_can_be_disputed() {
        let now = 1_000_000;
        let left_for = |left: u64| decided_by(Millis(now + left), Millis(now)).0 - now;
        assert_eq!(left_for(60_000), 50_000, "noted just now");
        assert_eq!(left_for(20_000), 13_334, "noted before the buyer came back");
        assert_eq!(left_for(3_000), 2_000, "a testnet");
        assert_eq!(left_for(0), 0);
        let over = decided_by(Millis(now - 5_000), Millis(now));
        assert_eq!(
            over,
            Millis(now),
            "at once: perhaps the log's clock is behind"
        );
    }

    #[test]
    fn what_others_have_too_is_not_apart() {
        let id = |word: &str| ("y".to_owned(), ContentId::of(word.as_bytes()));
        let mine = [id("a"), id("b"), id("c")];
        assert_eq!(apart(&mine, &[&[id("c")], &[id("a")]]), [id("b")]);
        assert_eq!(apart(&mine, &[]), mine);
    }
}
