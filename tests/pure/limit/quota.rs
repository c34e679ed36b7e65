//! The numbers of quotas and levels, for all algorithms.

use tidegate::clock::Micros;
use tidegate::limit::Level;

#[test]
fn level_of_refusal_shows_less_than_the_cost() {
    // Remaining, refused cost; remaining in the reply.
    for (remaining, cost, shown) in [(9, 4, 3), (3, 4, 3), (0, 4, 0), (9, 1, 0), (9, 0, 0), (9, u32::MAX, 9)]
    {
        let level = Level { limit: 10, window: Micros(7), remaining, reset: Micros(5) };
        assert_eq!(
            level.refusing(cost),
            Level { remaining: shown, ..level },
            "{remaining} left, {cost} refused"
        );
    }
}
