//! Computes which parts of a plan can still run after some providers left, and which parts read,
//! directly or through others, what a part makes. `limiting` and `judging` call it. A provider runs
//! its parts in order, so a part that cannot run also stops those behind it.

use std::collections::BTreeMap;

use super::plan::Plan;

/// A part, by the place of its leg in the plan and its number among the parts there.
type Run = (u32, u32);

/// Returns for each place how many of its parts, in their order, ran or can run. Places in `ended`
/// ran as many as it says; the others can run each part whose inputs exist or can be made.
///
/// A provider runs its parts in order: if one cannot run, those behind it cannot either, and
/// neither can the parts that read them.
pub(super) fn runnable_counts(plan: &Plan, ended: &BTreeMap<u32, u32>) -> Vec<u32> {
    let order = |part: u32| -> Run {
        let place = plan.parts[part as usize].leg;
        let mut parts = plan.parts_at(place).map(|(number, _)| number);
        let order = parts.position(|number| number == part);
        let order = order.expect("a part is run where it was placed");
        (place, u32::try_from(order).expect("parts are few"))
    };
    let needs = |place: u32| -> Vec<Vec<Run>> {
        let parts = plan.parts_at(place);
        let makers = parts.map(|(_, part)| {
            let makers = part.inputs.iter().filter_map(|input| input.maker);
            makers.map(order).collect()
        });
        makers.collect()
    };
    let needs: Vec<_> = plan
        .legs_by_place()
        .map(|(place, _)| needs(place))
        .collect();
    settle_counts(&needs, ended)
}

/// Computes those counts from what each part of each place needs.
fn settle_counts(needs: &[Vec<Vec<Run>>], ended: &BTreeMap<u32, u32>) -> Vec<u32> {
    let count = |parts: &[Vec<Run>]| u32::try_from(parts.len()).expect("parts are few");
    let begin = (0..).zip(needs);
    let begin = begin.map(|(place, parts)| ended.get(&place).copied().unwrap_or(count(parts)));
    let mut runnable: Vec<u32> = begin.collect();
    // Each round takes a part from some place, or is the last.
    loop {
        let there = |&(place, order): &Run| order < runnable[place as usize];
        let left = (0..).zip(needs).map(|(place, parts)| {
            let whole = |part: &&Vec<Run>| part.iter().all(there);
            let now = runnable[place as usize] as usize;
            match ended.get(&place) {
                Some(&run) => run,
                None => {
                    let run = parts[..now].iter().take_while(whole).count();
                    u32::try_from(run).expect("parts are few")
                }
            }
        });
        let left: Vec<u32> = left.collect();
        if left == runnable {
            return runnable;
        }
        runnable = left;
    }
}

/// Returns the part and all parts that read, directly or not, what it makes.
pub(super) fn part_and_readers(plan: &Plan, part: u32) -> Vec<u32> {
    let (mut found, mut open) = (Vec::new(), vec![part]);
    while let Some(next) = open.pop() {
        if !found.contains(&next) {
            found.push(next);
            let outputs = &plan.parts[next as usize].outputs;
            open.extend(outputs.iter().flat_map(|output| &output.readers));
        }
    }
    found
}

/// Returns all parts that read, directly or not, what a part makes.
pub(super) fn transitive_readers(plan: &Plan, part: u32) -> Vec<u32> {
    let mut readers = part_and_readers(plan, part);
    readers.retain(|reader| *reader != part);
    readers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A runs parts 1 and 3 of a chain, B part 2; C reads part 1 alone.
    fn chain() -> Vec<Vec<Vec<Run>>> {
        vec![
            vec![vec![], vec![(1, 0)]],
            vec![vec![(0, 0)]],
            vec![vec![(0, 0)]],
        ]
    }

    #[test]
    fn what_comes_before_the_one_that_is_away_is_run() {
        assert_eq!(settle_counts(&chain(), &[(1, 0)].into()), [1, 0, 1]);
    }

    #[test]
    fn without_the_first_nothing_is_run() {
        assert_eq!(settle_counts(&chain(), &[(0, 0)].into()), [0, 0, 0]);
    }

    #[test]
    fn who_is_needed_by_nobody_takes_nobody_along() {
        assert_eq!(settle_counts(&chain(), &[(2, 0)].into()), [2, 1, 0]);
    }

    #[test]
    fn what_one_that_went_away_has_done_is_there() {
        assert_eq!(settle_counts(&chain(), &[(0, 1)].into()), [1, 1, 1]);
    }

    #[test]
    fn what_follows_a_part_that_cannot_be_run_is_not_run_either() {
        // A: 1, then 3 which needs B, then 4 which needs nothing; C needs 4.
        let needs = vec![
            vec![vec![], vec![(1, 0)], vec![]],
            vec![vec![]],
            vec![vec![(0, 2)]],
        ];
        assert_eq!(settle_counts(&needs, &[(1, 0)].into()), [1, 0, 0]);
    }
}
