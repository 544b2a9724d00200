//! How many validators must sign before others believe them.

/// Returns how many of `members` validators must sign a head or a state before it is certified: so
/// many that any two certificates share one that does not lie, if less than a third do.
#[must_use]
pub fn certifying_count(members: usize) -> usize {
    2 * members / 3 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_two_thirds_certify() {
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 7].map(certifying_count),
            [1, 2, 3, 3, 4, 5, 5]
        );
    }
}
