//! Converts between civil dates of the proleptic Gregorian calendar and days since 1970-01-01. Uses no clock and no
//! time zone.
//!
//! Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil` and `civil_from_days`,
//! <https://howardhinnant.github.io/date_algorithms.html>. Its years begin in March, so that the leap day is the last
//! day of its year.

/// The day of a date, counted from 1970-01-01. `month` is 1 to 12, `day` is 1 to 31.
pub(super) fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * DAYS_IN_ERA + day_of_era - DAYS_TO_1970
}

/// The date of a day: year, month and day of the month.
pub(super) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_1970;
    let era = days.div_euclid(DAYS_IN_ERA);
    let day_of_era = days.rem_euclid(DAYS_IN_ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days in 400 years.
const DAYS_IN_ERA: i64 = 146_097;

/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: i64 = 719_468;

#[cfg(test)]
mod tests {
    use super::{civil_from_days, days_from_civil};

    #[test]
    fn converts_known_dates() {
        let table: &[(i64, (i64, i64, i64))] = &[
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (789, (1972, 2, 29)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
            (-719_468, (0, 3, 1)),
            (2_932_896, (9999, 12, 31)),
        ];
        for (days, (year, month, day)) in table {
            assert_eq!(civil_from_days(*days), (*year, *month, *day), "{days}");
            assert_eq!(days_from_civil(*year, *month, *day), *days, "{year}-{month}-{day}");
        }
    }

    #[test]
    fn converts_every_day_of_1200_years() {
        let mut date = civil_from_days(-250_000);
        for days in -249_999..200_000 {
            let (year, month, day) = date;
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 => 28 + i64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            date = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, day) if day == last => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
            assert_eq!(civil_from_days(days), date);
            assert_eq!(days_from_civil(date.0, date.1, date.2), days);
        }
    }
}
