//! Which parts of a round can still be run, and which were, when some of its providers are away.

use std::collections::BTreeMap;

use souk_scheduler::graph::cut::Subgraph;

use super::Quote;
use super::purchase::Bought;

/// For each place, how many of its parts, in their order, can be run or were: places that `ended`
/// names have run as many as it says, the others can run what needs nothing that was not run.
///
/// A provider runs its parts in order: what comes after one that cannot be run is not run either,
/// and neither is what needs that.
pub(super) fn runnable(
    quote: &Quote,
    bought: &Bought,
    ended: &BTreeMap<usize, usize>,
) -> Vec<usize> {
    let places = 0..bought.trades.len();
    let parts: Vec<Vec<&Subgraph>> = places
        .map(|place| bought.parts(quote, place).map(|(_, part)| part).collect())
        .collect();
    let makers = |part: &Subgraph| -> Vec<(usize, usize)> {
        let from = part.inputs.iter().filter_map(|input| input.from);
        let maker = |maker: usize| {
            let place = bought.place_of(quote, maker);
            let order = parts[place].iter().position(|made| made.part == maker);
            (place, order.expect("a part is run where it was placed"))
        };
        from.map(maker).collect()
    };
    let needs: Vec<Vec<Vec<(usize, usize)>>> = parts
        .iter()
        .map(|parts| parts.iter().map(|part| makers(part)).collect())
        .collect();
    settled(&needs, ended)
}

/// The same of what each part of each place needs: places and the numbers of their parts.
fn settled(needs: &[Vec<Vec<(usize, usize)>>], ended: &BTreeMap<usize, usize>) -> Vec<usize> {
    let begin = needs.iter().enumerate();
    let begin = begin.map(|(place, parts)| ended.get(&place).copied().unwrap_or(parts.len()));
    let mut runnable: Vec<usize> = begin.collect();
    // Each round takes a part from some place, or is the last.
    loop {
        let there = |&(place, order): &(usize, usize)| order < runnable[place];
        let left = needs.iter().enumerate().map(|(place, parts)| {
            let whole = |part: &&Vec<(usize, usize)>| part.iter().all(there);
            match ended.get(&place) {
                Some(&run) => run,
                None => parts[..runnable[place]].iter().take_while(whole).count(),
            }
        });
        let left: Vec<usize> = left.collect();
        if left == runnable {
            return runnable;
        }
        runnable = left;
    }
}

/// Whether a part was among the first `run` of its place.
pub(super) fn was_run(quote: &Quote, bought: &Bought, part: usize, run: usize) -> bool {
    let place = bought.place_of(quote, part);
    let order = bought
        .parts(quote, place)
        .position(|(_, mine)| mine.part == part);
    order.is_some_and(|order| order < run)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A runs parts 1 and 3 of a chain, B part 2; C reads part 1 alone.
    fn chain() -> Vec<Vec<Vec<(usize, usize)>>> {
        vec![
            vec![vec![], vec![(1, 0)]],
            vec![vec![(0, 0)]],
            vec![vec![(0, 0)]],
        ]
    }

    #[test]
    fn what_comes_before_the_one_that_is_away_is_run() {
        assert_eq!(settled(&chain(), &[(1, 0)].into()), [1, 0, 1]);
    }

    #[test]
    fn without_the_first_nothing_is_run() {
        assert_eq!(settled(&chain(), &[(0, 0)].into()), [0, 0, 0]);
    }

    #[test]
    fn who_is_needed_by_nobody_takes_nobody_along() {
        assert_eq!(settled(&chain(), &[(2, 0)].into()), [2, 1, 0]);
    }

    #[test]
    fn what_one_that_went_away_has_done_is_there() {
        assert_eq!(settled(&chain(), &[(0, 1)].into()), [1, 1, 1]);
    }

    #[test]
    fn what_was_run_before_its_maker_failed_is_still_there() {
        let mut needs = chain();
        needs.push(vec![vec![(1, 0)]]);
        assert_eq!(settled(&needs, &[(0, 0), (1, 1)].into()), [0, 1, 0, 1]);
    }

    #[test]
    fn what_follows_a_part_that_cannot_be_run_is_not_run_either() {
        // A: 1, then 3 which needs B, then 4 which needs nothing; C needs 4.
        let needs = vec![
            vec![vec![], vec![(1, 0)], vec![]],
            vec![vec![]],
            vec![vec![(0, 2)]],
        ];
        assert_eq!(settled(&needs, &[(1, 0)].into()), [1, 0, 0]);
    }
}
