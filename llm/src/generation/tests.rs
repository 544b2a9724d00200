//! Tests generation with a fake session: a sequence computes only the tokens that are new, right
//! drafts save steps and never change the text, and texts match their grammars.

mod grammars;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use souk_vocabulary::processor::session::SequenceStep;
use souk_vocabulary::processor::{Engine, Outcome};

use super::*;
use crate::decoder::{ROWS, TOKENS, WRITE};

/// Where tokens were written, and which.
type Written = (i64, Vec<i64>);

/// A session that says the token after the last one, and notes what it was given.
struct Successor<'a>(&'a Mutex<Vec<Written>>);

impl Successor<'_> {
    fn said(&mut self, inputs: &BTreeMap<String, Tensor>) -> Outcome {
        let integers = |name: &str| inputs[name].to_vec::<i64>().unwrap();
        let tokens = integers(TOKENS);
        let rows = integers(ROWS);
        let logits = rows.iter().flat_map(|&row| {
            let next = (tokens[row as usize] + 1) % 10;
            (0..10).map(move |token| f32::from(u8::from(token == next)))
        });
        let logits: Vec<f32> = logits.collect();
        self.0.lock().unwrap().push((integers(WRITE)[0], tokens));
        of_logits(inputs, &logits, 10)
    }
}

/// What a step came to whose rows have these logits, as a decoder gives it.
fn of_logits(inputs: &BTreeMap<String, Tensor>, logits: &[f32], vocabulary: usize) -> Outcome {
    let step = Step::of_inputs(inputs);
    let (sampling, position) = Sampling::from_numbers(&step.sampling).unwrap();
    let rows = logits.chunks_exact(vocabulary).zip(position..);
    let drawn = rows.map(|(row, at)| i64::from(sampling.draw_at(row, at).unwrap()));
    let drawn = Tensor::from_vec([1, step.rows.len()], drawn.collect()).unwrap();
    let rows = step.logit_rows.iter();
    let floats = rows.flat_map(|row| &logits[row * vocabulary..][..vocabulary]);
    let floats: Vec<f32> = floats.copied().collect();
    let returned = Tensor::from_vec([1, step.logit_rows.len(), vocabulary], floats).unwrap();
    Outcome {
        outputs: BTreeMap::from([
            (SAMPLED_TOKENS.to_owned(), drawn),
            (LOGITS.to_owned(), returned),
        ]),
        busy: Duration::ZERO,
        energy: None,
        operators: 0,
        engine: Engine::Own,
    }
}

impl Session for Successor<'_> {
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>> {
        let each = steps.iter().map(|step| self.said(&step.inputs));
        each.map(Ok).collect()
    }

    fn export_states(&self, _: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        Ok(BTreeMap::new())
    }
}

fn said(sequence: &mut Sequence<'_>, prompt: &[u32], wanted: &dyn Fn() -> bool) -> Vec<u32> {
    let request = Request {
        prompt,
        sampling: &Sampling::default(),
        ends: &[],
        grammar: None,
        tokens_max: 3,
        drafts_max: 0,
        likeliest: None,
        is_wanted: wanted,
    };
    let mut said = Vec::new();
    let take = |token: DrawnToken| {
        said.push(token.id);
        ControlFlow::Continue(())
    };
    generate(sequence, &request, take).unwrap();
    said
}

#[test]
fn only_what_differs_from_the_text_before_is_computed() {
    let steps = Mutex::default();
    let mut sequence = Sequence::new(Box::new(Successor(&steps)), 32);
    let always = || true;
    assert_eq!(said(&mut sequence, &[1, 2, 3], &always), [4, 5, 6]);
    // The last token was said and never given: it comes with what follows it.
    steps.lock().unwrap().clear();
    let next = [1, 2, 3, 4, 5, 6, 0, 7];
    assert_eq!(said(&mut sequence, &next, &always), [8, 9, 0]);
    assert_eq!(steps.lock().unwrap()[0], (5, vec![6, 0, 7]));
    // Another beginning: from where the two part. The same again: its last token alone.
    steps.lock().unwrap().clear();
    said(&mut sequence, &[1, 2, 9], &always);
    said(&mut sequence, &[1, 2, 9], &always);
    let firsts = steps.lock().unwrap();
    assert_eq!(firsts[0], (2, vec![9]));
    assert_eq!(firsts[3], (2, vec![9]));
}

#[test]
fn what_nobody_wants_any_more_is_not_computed() {
    let steps = Mutex::default();
    let mut sequence = Sequence::new(Box::new(Successor(&steps)), 600);
    let until_two = || steps.lock().unwrap().len() < 2;
    let prompt = [3; 3 * STEP_TOKENS_MAX / 2];
    // Two pieces of the prompt, and no step after the token that they gave.
    assert_eq!(said(&mut sequence, &prompt, &until_two), [4]);
    assert_eq!(steps.lock().unwrap().len(), 2);
    assert_eq!(sequence.length(), prompt.len());
}

/// A text, how it was generated, and in how many steps.
fn drafted(
    prompt: &[u32],
    (tokens_max, room): (usize, usize),
) -> (Vec<u32>, GenerationOutcome, usize) {
    let steps = Mutex::default();
    let mut sequence = Sequence::new(Box::new(Successor(&steps)), room);
    let request = Request {
        prompt,
        sampling: &Sampling::default(),
        ends: &[],
        grammar: None,
        tokens_max,
        drafts_max: 8,
        likeliest: None,
        is_wanted: &|| true,
    };
    let mut said = Vec::new();
    let take = |token: DrawnToken| {
        said.push(token.id);
        ControlFlow::Continue(())
    };
    let generated = generate(&mut sequence, &request, take).unwrap();
    // What the caches hold is what was said, whatever was drafted.
    let text = [prompt, &said].concat();
    assert_eq!(sequence.tokens, text[..sequence.length()]);
    let steps = steps.lock().unwrap().len();
    (said, generated, steps)
}

#[test]
fn drafts_that_are_right_cost_no_steps_and_change_no_text() {
    let wanted: Vec<u32> = (0..40).map(|at| (at + 3) % 10).collect();
    let prompt: Vec<u32> = (0..13).map(|at| at % 10).collect();
    let (said, generated, steps) = drafted(&prompt, (40, 64));
    assert_eq!((said, generated.ending), (wanted.clone(), Ending::Length));
    assert_eq!(generated.drafted, generated.accepted);
    // The prompt, then 5, 9, 9, 9 and 7 tokens: one more than was drafted.
    assert_eq!(steps, 6);
    // A draft that is wrong: after 5 and 6 came 9 before.
    let (said, generated, _) = drafted(&[5, 6, 9, 0, 1, 5], (6, 64));
    assert_eq!(said, [6, 7, 8, 9, 0, 1]);
    assert!(generated.accepted < generated.drafted);
    // No more are drafted than there is room for.
    let (said, generated, _) = drafted(&prompt, (40, 20));
    assert_eq!((said.len(), generated.ending), (8, Ending::Room));
}
