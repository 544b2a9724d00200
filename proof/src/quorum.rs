//! Computes how many validators must sign a head or a state before clients believe it.

/// Returns how many of `members` validators must sign a head or a state to certify it. It is the
/// number at which any two certificates share an honest signer, if less than a third of the
/// validators lie.
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
