//! Tests how the waiting steps of several sequences are grouped, and how long a step waits for
//! more.

use std::time::Duration;

use super::*;

/// Steps of one sequence, each with these inputs.
fn asked(sequence: u32, inputs: &[&str]) -> WaitingStep {
    let tensor = |name: &&str| ((*name).to_owned(), Tensor::scalar(0i64));
    let inputs = inputs.iter().map(tensor).collect();
    let (answer, _) = channel();
    WaitingStep {
        step: SequenceStep { sequence, inputs },
        since: Instant::now(),
        answer,
    }
}

fn steps(sequences: impl IntoIterator<Item = u32>) -> Vec<SequenceStep> {
    let step = |sequence| asked(sequence, &[]).step;
    sequences.into_iter().map(step).collect()
}

#[test]
fn a_batch_has_the_first_step_of_each_sequence() {
    let all = || vec![asked(2, &["a"]), asked(0, &["b"]), asked(2, &["c"])];
    let mut waiting = all();
    let (steps, answers) = take_batch(&mut waiting, usize::MAX);
    let sequences: Vec<u32> = steps.iter().map(|step| step.sequence).collect();
    assert_eq!((sequences, answers.len()), (vec![2, 0], 2));
    assert!(steps[0].inputs.contains_key("a"));
    assert!(waiting.len() == 1 && waiting[0].step.inputs.contains_key("c"));
    let mut waiting = all();
    let (steps, _) = take_batch(&mut waiting, 1);
    assert_eq!((steps.len(), waiting.len()), (1, 2), "one at most");
}

/// Steps of sequences from 0 on, each with so many rows.
fn asked_rows(rows: &[usize]) -> Vec<WaitingStep> {
    let numbered = rows.iter().enumerate();
    let step = numbered.map(|(sequence, rows)| {
        let mut asked = asked(sequence as u32, &[]);
        let positions = Tensor::from_vec([1, *rows], vec![0i64; *rows]).unwrap();
        asked.step.inputs.insert("positions".to_owned(), positions);
        asked
    });
    step.collect()
}

#[test]
fn long_prompts_of_several_sequences_do_not_make_one_huge_step() {
    let mut waiting = asked_rows(&[200, 1, 100, 56, 1, 256]);
    waiting.extend(asked_rows(&[1, 1, 1]));
    let mut next = || {
        let (steps, _) = take_batch(&mut waiting, usize::MAX);
        let taken = steps.iter().map(|it| (it.sequence, count_rows(it)));
        taken.collect::<Vec<(u32, usize)>>()
    };
    // Each short step goes at once; what follows in a sequence whose prompt waits does not pass it.
    assert_eq!(next(), [(0, 200), (1, 1), (3, 56), (4, 1)]);
    assert_eq!(next(), [(2, 100), (0, 1), (1, 1)]);
    assert_eq!(next(), [(5, 256), (2, 1)]);
    assert!(next().is_empty());
    // A step that exceeds the limit alone goes too, with the short ones.
    let (steps, _) = take_batch(&mut asked_rows(&[1, 300, 2, 1]), usize::MAX);
    let sequences: Vec<u32> = steps.iter().map(|it| it.sequence).collect();
    assert_eq!(sequences, [0, 1, 3]);
}

#[test]
fn who_was_just_answered_is_waited_for_no_longer_than_for_a_moment() {
    let (give, asking) = channel();
    let mut pace = Pace::default();
    pace.last = BTreeSet::from([0, 1]);
    pace.until = Some(Instant::now() + Duration::from_secs(600));
    give.send(asked(1, &[])).unwrap();
    let mut waiting = vec![asked(0, &[])];
    gather_steps(&asking, &mut waiting, &pace);
    assert_eq!(waiting.len(), 2, "all are back: nobody is waited for");
    pace.until = Some(Instant::now());
    let mut waiting = vec![asked(0, &[])];
    gather_steps(&asking, &mut waiting, &pace);
    assert_eq!(waiting.len(), 1, "the moment is over");
}

/// How many of four sequences are stepped at once that come back together after so long, where a
/// step takes ten milliseconds.
fn at_once(away: Duration) -> usize {
    let mut pace = Pace::default();
    pace.on_stepped(&steps(0..4), Duration::from_millis(10));
    let back = Instant::now() + away;
    let waiting = (0..4).map(|sequence| WaitingStep {
        since: back,
        ..asked(sequence, &[])
    });
    let waiting: Vec<WaitingStep> = waiting.collect();
    pace.most_at_once(&waiting).min(waiting.len())
}

#[test]
fn sequences_that_are_away_for_longer_than_a_step_go_in_two_groups() {
    assert_eq!(at_once(Duration::from_millis(12)), 2);
    assert_eq!(at_once(Duration::from_millis(3)), 4);
    assert_eq!(at_once(Duration::ZERO), 4, "as steps that were given ahead");
}

#[test]
fn a_group_is_half_of_all_that_are_stepped_and_not_of_those_that_wait() {
    let mut pace = Pace::default();
    pace.on_stepped(&steps(0..8), Duration::from_millis(10));
    let far = Instant::now() + Duration::from_millis(20);
    let waiting = |sequences: std::ops::Range<u32>| -> Vec<WaitingStep> {
        let sequences = sequences.map(|sequence| WaitingStep {
            since: far,
            ..asked(sequence, &[])
        });
        sequences.collect()
    };
    assert_eq!(pace.most_at_once(&waiting(0..8)), 4);
    pace.on_stepped(&steps(0..4), Duration::from_millis(10));
    assert!(pace.until.is_none(), "who is away is not waited for");
    assert_eq!(
        pace.most_at_once(&waiting(4..8)),
        4,
        "the other half, whole"
    );
}

#[test]
fn a_sequence_that_is_stepped_no_more_counts_no_more() {
    let mut pace = Pace::default();
    pace.on_stepped(&steps(0..4), Duration::from_millis(10));
    for _ in 0..8 {
        pace.on_stepped(&steps(0..2), Duration::from_millis(10));
    }
    let far = Instant::now() + Duration::from_millis(20);
    let waiting = WaitingStep {
        since: far,
        ..asked(0, &[])
    };
    assert_eq!(pace.most_at_once(&[waiting]), 1);
}
