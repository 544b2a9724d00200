//! Redundant sessions for `--verify 2`: two sessions write a text at once, have no provider in
//! common, and their steps are compared.
//!
//! Both get the same tokens, those of the first. If they draw the same token and the caller wants
//! no logits, the step is done. Otherwise their logits must agree within a tolerance, and each
//! token must be the one that its logits draw. If not, a third session is bought, gets the text so
//! far, and decides: it replaces the session that differs from it. A token leaves this module only
//! when two sessions agree on it.

use std::sync::{Arc, Mutex, PoisonError};

use souk_llm::decoder::{DRAWN, LOGITS};
use souk_llm::generation::Step;
use souk_llm::sampling::Sampling;
use souk_node::market::Receipt;
use souk_node::memory::Tensor;
use souk_vocabulary::processor::RunError;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::market_session::{MarketSession, SessionMarket, StepOrder};
use crate::session_sequence::StepOutputs;
use crate::steps::{Steps, step_outcome};
use crate::text_error::{TextError, failed_step};

/// Largest difference between two logits of honest providers, relative to the largest logit:
/// kernels that quantise rows to bytes round differently from those that use floats.
const TOLERANCE: f32 = 0.02;

/// Two sessions whose steps are compared.
#[derive(Clone)]
pub struct Panel(Arc<PanelRoom>);

struct PanelRoom {
    market: SessionMarket,
    /// A task must hold this while it judges two answers that differ.
    judging: tokio::sync::Mutex<()>,
    seats: Mutex<Seats>,
}

/// The members of the panel.
struct Seats {
    sitting: [Member; 2],
    /// Results of the sessions that left.
    left: Vec<JoinHandle<(Vec<Receipt>, Option<TextError>)>>,
    /// Number of sessions so far.
    count: u32,
    failure: Option<TextError>,
}

/// A session and its number.
#[derive(Clone)]
struct Member {
    number: u32,
    session: MarketSession,
}

/// A session's answer to a step.
struct Word {
    drawn: Vec<i64>,
    logits: Vec<f32>,
}

impl Panel {
    /// Creates two sessions in a market. The first step buys them, nothing earlier.
    pub fn from_market(market: SessionMarket) -> Self {
        let sitting = [0, 1].map(|number| Member::from_market(&market, number));
        let seats = Seats {
            sitting,
            left: Vec::new(),
            count: 2,
            failure: None,
        };
        Self(Arc::new(PanelRoom {
            market,
            judging: tokio::sync::Mutex::default(),
            seats: Mutex::new(seats),
        }))
    }

    /// Returns the steps of a sequence. They block, so you must call them on a thread that may.
    pub fn sequence_steps(&self, sequence: u32, handle: &Handle) -> Steps<'static> {
        let (panel, handle) = (self.clone(), handle.clone());
        let mut tokens = Vec::new();
        Steps(Box::new(move |inputs| {
            let step = Step::of_inputs(inputs);
            tokens.truncate(step.after);
            let outputs = handle.block_on(panel.0.compute_step(sequence, &tokens, &step))?;
            tokens.extend(&step.tokens);
            Ok(step_outcome(outputs))
        }))
    }

    /// Ends all sessions; returns their receipts, and the reason if they failed.
    pub async fn finish_sessions(&self) -> (Vec<Receipt>, Option<TextError>) {
        let (sitting, left, mut failure) = {
            let mut seats = self.0.lock_seats();
            let left = std::mem::take(&mut seats.left);
            (seats.sitting.clone(), left, seats.failure.take())
        };
        let mut receipts = Vec::new();
        for ended in left {
            // The failures of members that left do not matter to the text.
            let (signed, _) = ended.await.unwrap_or_default();
            receipts.extend(signed);
        }
        for member in sitting {
            let (signed, failed) = member.session.finish_session().await;
            receipts.extend(signed);
            failure = failure.or(failed);
        }
        (receipts, failure)
    }
}

impl Seats {
    /// Returns the number of the next session.
    fn next(&mut self) -> u32 {
        self.count += 1;
        self.count - 1
    }

    /// Ends the session of a member.
    fn end_member(&mut self, member: Member) {
        let ending = async move { member.session.finish_session().await };
        self.left.push(tokio::spawn(ending));
    }
}

impl Member {
    fn from_market(market: &SessionMarket, number: u32) -> Self {
        let session = market.new_session(number);
        Self { number, session }
    }

    /// Returns the session's answer to a step.
    async fn answer_step(&self, order: &StepOrder) -> Result<Word, RunError> {
        let stepped = self.session.compute_step(order.clone()).await;
        stepped.map(|outputs| Word::from_outputs(&outputs))
    }
}

impl PanelRoom {
    fn lock_seats(&self) -> std::sync::MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes a step and returns the outputs on which two sessions agree.
    async fn compute_step(
        &self,
        sequence: u32,
        before: &[u32],
        step: &Step,
    ) -> Result<StepOutputs, RunError> {
        let order = |step: &Step| StepOrder {
            sequence,
            before: before.to_vec(),
            step: step.clone(),
        };
        loop {
            let [first, second] = self.lock_seats().sitting.clone();
            let seated = [first.number, second.number];
            let both = tokio::join!(
                first.session.compute_step(order(step)),
                second.session.compute_step(order(step))
            );
            let (first, second) = match both {
                (Ok(first), Ok(second)) => (first, second),
                // A member may have left in the meantime.
                (Err(_), _) | (_, Err(_)) if self.are_others(seated) => continue,
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            if Word::from_outputs(&first).agrees_with(&Word::from_outputs(&second)) {
                return Ok(first);
            }
            let judging = self.judging.lock().await;
            if self.are_others(seated) {
                continue;
            }
            let told = order(&step.clone().with_logits());
            let judged = self.judge(&told, [first, second]).await;
            drop(judging);
            if let Some(judged) = judged.transpose() {
                return judged;
            }
        }
    }

    /// Returns whether the active members are not those with these numbers.
    fn are_others(&self, numbers: [u32; 2]) -> bool {
        self.lock_seats().sitting.each_ref().map(|it| it.number) != numbers
    }

    /// Returns the correct one of two different outputs, or `None` if a session has new providers
    /// by now: then the caller must repeat the step.
    async fn judge(
        &self,
        told: &StepOrder,
        given: [StepOutputs; 2],
    ) -> Result<Option<StepOutputs>, RunError> {
        let sitting = self.lock_seats().sitting.clone();
        let choices = self.market.sellers().lock().await.choices();
        let (first, second) =
            tokio::join!(sitting[0].answer_step(told), sitting[1].answer_step(told));
        let [first, second] = [first?, second?];
        if self.market.sellers().lock().await.choices() != choices {
            return Ok(None);
        }
        let word = |given: &StepOutputs, now: Word| Word {
            drawn: Word::from_outputs(given).drawn,
            logits: now.logits,
        };
        let words = [word(&given[0], first), word(&given[1], second)];
        let are_true = words.each_ref().map(|word| word.is_true(&told.step));
        let [first, second] = given;
        if are_true == [true, true] && is_close(&words[0].logits, &words[1].logits) {
            return Ok(Some(first));
        }
        let is_first = self.decide(told, &sitting, &words).await?;
        Ok(Some(if is_first { first } else { second }))
    }

    /// Buys a third session to decide between two answers; returns whether the first is correct.
    async fn decide(
        &self,
        told: &StepOrder,
        sitting: &[Member; 2],
        words: &[Word; 2],
    ) -> Result<bool, RunError> {
        let position = told.step.after + told.step.tokens.len();
        let names = {
            let sellers = self.market.sellers().lock().await;
            sitting
                .each_ref()
                .map(|it| sellers.session_names(it.number).to_owned())
        };
        let differ = format!(
            "{} and {} differ at position {position}",
            names[0], names[1]
        );
        self.market.notify(&format!("{differ}: a third decides"));
        let third = Member::from_market(&self.market, self.lock_seats().next());
        let Ok(decided) = third.answer_step(told).await else {
            return Err(self.record_failure(third, format!("{differ}, and no third decides")));
        };
        let is_right =
            |word: &Word| word.is_true(&told.step) && is_close(&word.logits, &decided.logits);
        let wrong = match words.each_ref().map(is_right) {
            [true, true] => {
                self.lock_seats().end_member(third);
                return Ok(true);
            }
            [true, false] => 1,
            [false, true] => 0,
            [false, false] => {
                return Err(self.record_failure(third, format!("{differ}, and a third from both")));
            }
        };
        self.market.notify(&format!(
            "{} is outvoted at position {position}, and leaves",
            names[wrong]
        ));
        let outvoted = sitting[wrong].number;
        self.market.sellers().lock().await.outvote_session(outvoted);
        let mut seats = self.lock_seats();
        let outvoted = std::mem::replace(&mut seats.sitting[wrong], third);
        seats.end_member(outvoted);
        Ok(wrong == 1)
    }

    /// Stores the reason why the text ends.
    fn record_failure(&self, third: Member, cause: String) -> RunError {
        let mut seats = self.lock_seats();
        seats.end_member(third);
        seats.failure = Some(TextError::Disagreement(cause.clone()));
        failed_step(cause)
    }
}

impl Word {
    fn from_outputs(outputs: &StepOutputs) -> Self {
        let drawn = outputs.get(DRAWN).map(Tensor::to_vec::<i64>);
        let logits = outputs.get(LOGITS).map(Tensor::to_vec::<f32>);
        Self {
            drawn: drawn.and_then(Result::ok).unwrap_or_default(),
            logits: logits.and_then(Result::ok).unwrap_or_default(),
        }
    }

    /// Returns whether two answers need no judgement.
    fn agrees_with(&self, other: &Self) -> bool {
        !self.drawn.is_empty() && self.drawn == other.drawn && is_close(&self.logits, &other.logits)
    }

    /// Returns whether each drawn token is the one that its logits draw.
    fn is_true(&self, step: &Step) -> bool {
        let Ok((sampling, position)) = Sampling::of_numbers(&step.sampling) else {
            return false;
        };
        let (rows, logits) = (self.drawn.len(), self.logits.len());
        if rows == 0 || rows != step.rows.len() || logits == 0 || !logits.is_multiple_of(rows) {
            return false;
        }
        let each = self.logits.chunks_exact(logits / rows);
        let mut drawn = self.drawn.iter().zip(each).zip(position..);
        drawn.all(|((token, logits), position)| {
            let right = sampling.draw_at(logits, position);
            right.is_ok_and(|right| i64::from(right) == *token)
        })
    }
}

/// Returns whether logits are equal within the tolerance.
fn is_close(a: &[f32], b: &[f32]) -> bool {
    let finite = a.iter().chain(b).filter(|it| it.is_finite());
    let most = TOLERANCE * finite.fold(0.0_f32, |most, it| most.max(it.abs()));
    let same = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= most;
    a.len() == b.len() && a.iter().zip(b).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(drawn: i64, logits: &[f32]) -> Word {
        Word {
            drawn: vec![drawn],
            logits: logits.to_vec(),
        }
    }

    #[test]
    fn the_same_token_is_agreed_on_without_logits_and_another_is_not() {
        assert!(word(3, &[]).agrees_with(&word(3, &[])));
        assert!(!word(3, &[]).agrees_with(&word(4, &[])));
        // Who says nothing agrees with nobody.
        let silent = Word::from_outputs(&StepOutputs::new());
        assert!(!silent.agrees_with(&silent));
    }

    #[test]
    fn logits_are_the_same_up_to_rounding_in_parts_of_the_largest() {
        assert!(is_close(&[10.0, 1.0], &[10.1, 0.9]));
        assert!(!is_close(&[10.0, 1.0], &[10.0, 1.3]));
        assert!(!is_close(&[10.0], &[10.0, 1.0]), "of another vocabulary");
        assert!(!is_close(&[f32::NAN], &[f32::NAN]));
        let lowest = f32::NEG_INFINITY;
        assert!(is_close(&[1.0, lowest], &[1.0, lowest]));
    }

    #[test]
    fn a_token_that_its_logits_do_not_draw_is_a_lie() {
        let step = Step::for_last_token(&[5, 6], 0).with_logits();
        assert!(word(1, &[0.0, 2.0, 1.0]).is_true(&step));
        assert!(!word(2, &[0.0, 2.0, 1.0]).is_true(&step));
        assert!(!word(1, &[]).is_true(&step), "and one of no logits");
        // Drawn by a seed, at its own position.
        let sampling = Sampling {
            temperature: 1.0,
            seed: 9,
            ..Sampling::default()
        };
        let logits = [0.5, 0.4, 0.3, 0.2];
        let step = step.with_sampling(&sampling);
        let right = sampling.draw_at(&logits, 2).unwrap();
        assert!(word(i64::from(right), &logits).is_true(&step));
        assert!(!word(i64::from((right + 1) % 4), &logits).is_true(&step));
    }
}
