use std::sync::Mutex;
use std::time::Duration;

use souk_vocabulary::processor::session::SequenceStep;
use souk_vocabulary::processor::{Engine, Outcome};

use super::*;

/// Where tokens were written, and which.
type Step = (i64, Vec<i64>);

/// A session that says the token after the last one, and notes what it was given.
struct Successor<'a>(&'a Mutex<Vec<Step>>);

impl Successor<'_> {
    fn said(&mut self, inputs: &BTreeMap<String, Tensor>) -> Outcome {
        let integers = |name: &str| inputs[name].to_vec::<i64>().unwrap();
        let tokens = integers(TOKENS);
        let next = tokens.last().map_or(0, |last| (last + 1) % 10);
        self.0.lock().unwrap().push((integers(WRITE)[0], tokens));
        let logits = (0..10).map(|token| f32::from(u8::from(token == next)));
        let logits = Tensor::from_vec([1, 1, 10], logits.collect()).unwrap();
        Outcome {
            outputs: BTreeMap::from([(LOGITS.to_owned(), logits)]),
            busy: Duration::ZERO,
            energy: None,
            operators: 0,
            engine: Engine::Own,
        }
    }
}

impl Session for Successor<'_> {
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>> {
        let each = steps.iter().map(|step| self.said(&step.inputs));
        each.map(Ok).collect()
    }

    fn export(&self, _: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        Ok(BTreeMap::new())
    }
}

fn said(sequence: &mut Sequence<'_>, prompt: &[u32], wanted: &dyn Fn() -> bool) -> Vec<u32> {
    let request = Request {
        prompt,
        sampling: &Sampling::default(),
        ends: &[],
        tokens_max: 3,
        is_wanted: wanted,
    };
    let mut said = Vec::new();
    let take = |token| {
        said.push(token);
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
    let prompt = [3; 3 * CHUNK / 2];
    // Two pieces of the prompt, and no step after the token that they gave.
    assert_eq!(said(&mut sequence, &prompt, &until_two), [4]);
    assert_eq!(steps.lock().unwrap().len(), 2);
    assert_eq!(sequence.length(), prompt.len());
}
