//! Round numbers, as people would write them.

/// Rounds up to the next of 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40 and so on.
pub(super) fn up(number: u64) -> u64 {
    let mut ten = 1_u64;
    loop {
        let round = TENTHS.iter().map(|tenths| tenths.saturating_mul(ten));
        // Below ten, skip numbers with a fraction.
        let mut round = round.filter(|times_ten| times_ten % 10 == 0).map(|times_ten| times_ten / 10);
        if let Some(found) = round.find(|round| *round >= number) {
            return found;
        }
        match ten.checked_mul(10) {
            Some(next) if next <= u64::MAX / 100 => ten = next,
            _ => return number,
        }
    }
}

const TENTHS: [u64; 10] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80];

#[cfg(test)]
mod tests {
    use super::up;

    #[test]
    fn up_to_the_next_that_is_round() {
        let table = [
            (0, 1),
            (1, 1),
            (3, 3),
            (7, 8),
            (9, 10),
            (11, 12),
            (13, 15),
            (21, 25),
            (26, 30),
            (61, 80),
            (81, 100),
            (101, 120),
            (99_999, 100_000),
            (1_200_001, 1_500_000),
        ];
        for (number, expected) in table {
            assert_eq!(up(number), expected, "{number}");
        }
        for number in 1..20_000 {
            let round = up(number);
            assert!(round >= number && round <= number + number / 3 + 1, "{number}: {round}");
            assert_eq!(up(round), round);
        }
        assert!(up(u64::MAX) == u64::MAX);
    }
}
