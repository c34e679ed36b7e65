//! What a replay keeps of callers and of time in bounded memory, and its tables.

use tidegate::clock::Timestamp;
use tidegate::engine::{RuleTotals, Totals};
use tidegate::trace::course::StepCounts;
use tidegate::trace::rule_records::CallerSet;
use tidegate::trace::spread::{DemandByCaller, quantile};
use tidegate::trace::summary::TextTable;

#[test]
fn keeps_sums_when_counts_of_a_rule_fall() {
    let totals = |pass| {
        let rule = RuleTotals { domain: "api".into(), rule: "a".into(), pass, ..RuleTotals::default() };
        Totals { rules: vec![rule], ..Totals::default() }
    };
    let mut course = StepCounts::default();
    for (at, pass) in [(0, 0), (1, 7), (2, 9), (3, 2), (4, 5)] {
        course.reach(Timestamp::from_nanos(at * 1_000_000), || totals(pass));
    }
    course.end(&totals(6));
    let passes: Vec<u64> = course.of("api", "a").iter().map(|[pass, ..]| *pass).collect();
    assert_eq!(passes, [2, 0, 0, 3, 1]);
    assert!(course.of("api", "b").is_empty());
}

#[test]
fn full_set_reports_more_callers() {
    let mut seen = CallerSet::default();
    assert!(seen.note(1, true) && !seen.note(1, true) && !seen.note(1, false));
    assert_eq!(seen.count(), (1, false));
    assert!(!seen.note(2, false));
    assert_eq!(seen.count(), (1, true));
}

#[test]
fn quantiles_are_observed_values() {
    let thousand: Vec<u64> = (1..=1_000).collect();
    let found = [0.5, 0.9, 0.99, 0.999, 1.0].map(|share| quantile(&thousand, share));
    assert_eq!(found, [500, 900, 990, 999, 1_000]);
    assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&[3, 7], share)), [3, 7, 7]);
    assert_eq!((quantile(&[], 0.5), quantile(&[9], 0.001)), (0, 9));
}

#[test]
fn halved_sample_keeps_all_counts_of_its_callers() {
    let mut callers = DemandByCaller::new(10);
    // Keys as a hash gives them. Each caller comes as often as its group number in one window.
    for number in 0..20_000_u64 {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        for _ in 0..=number % 10 {
            callers.note(key, 2, Timestamp::from_nanos(7));
        }
        if number == 10_000 {
            callers.callers.halve();
        }
    }
    let shape = callers.shape().unwrap();
    assert_eq!(shape.one_in, 2);
    assert!((9_000..11_000).contains(&shape.busiest.len()), "{}", shape.busiest.len());
    let groups: Vec<_> = shape.busiest.chunk_by(PartialEq::eq).map(|group| (group[0], group.len())).collect();
    let counts: Vec<u64> = groups.iter().map(|(count, _)| *count).collect();
    assert_eq!(counts, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20], "a count is whole, or missing");
    assert!(groups.iter().all(|(_, callers)| (800..1_200).contains(callers)), "{groups:?}");
}

#[test]
fn leaves_out_columns_and_shortens_names_to_fit_a_width() {
    let row = ["a-name-of-thirty-characters---", "1 000 000", "12", "3"].map(str::to_owned).to_vec();
    let table = TextTable::new(&["rule", "passed", "refused", "spare"], std::iter::once(row));
    let fitted = |width| {
        let columns = table.fit(width, &[3, 1]);
        let row: Vec<_> = columns.iter().map(|(_, cells)| cells[1].as_str()).collect();
        row.join("  ")
    };
    assert_eq!(fitted(57), "a-name-of-thirty-characters---  1 000 000       12      3");
    assert_eq!(fitted(47), "a-name-of-thirty-ch…  1 000 000       12      3");
    assert_eq!(fitted(46), "a-name-of-thirty-characte…  1 000 000       12");
    assert_eq!(fitted(39), "a-name-of-thirty-characters---       12");
    assert_eq!(fitted(12), "a-…       12");
    assert_eq!(fitted(3), "       12", "a number stays whole");
}
