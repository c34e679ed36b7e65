//! Converts a reading of any kind to a utilization, by the map of a rule. Readings are arguments.

/// The utilization, as a fraction, for a reading: linear between the points of `map`, constant outside.
///
/// A point is a reading and a utilization in thousandths; readings rise. Of two points at one reading the later one
/// applies from there on. A map without points yields zero.
///
/// ```
/// # use tidegate::shed::mapping::utilization;
/// let map = [(0, 0), (32, 1_000)];
/// assert_eq!(utilization(&map, 8), 0.25);
/// assert_eq!(utilization(&map, 1_000), 1.0);
/// ```
pub fn utilization(map: &[(u32, u16)], reading: u32) -> f64 {
    let mut left = None;
    for &(at, permille) in map {
        let right = (f64::from(at), f64::from(permille) / 1_000.0);
        if at > reading {
            // The left point is not above the reading, so the two differ.
            return left.map_or(right.1, |left| interpolate(left, right, f64::from(reading)));
        }
        left = Some(right);
    }
    left.map_or(0.0, |(_, utilization)| utilization)
}

fn interpolate(left: (f64, f64), right: (f64, f64), reading: f64) -> f64 {
    left.1 + (right.1 - left.1) * (reading - left.0) / (right.0 - left.0)
}
