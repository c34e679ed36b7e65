//! Keys: the transformation of values, so that different spellings of one caller share a state.

use tidegate::rules::{KeyScratch, Selection, read_text};

/// Checks the keys of values under a transformation.
#[track_caller]
fn check(transform: &str, table: &[(&str, &str)]) {
    let key = format!("key: [{{attribute: caller{transform}}}, next]");
    let loaded = read_text("rules.yaml", &format!("domain: api\nlimits:\n- {{name: a, {key}, rate: 1/s}}\n"));
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    let domain = &loaded.domains[0];
    let (mut selection, mut matching, mut scratch) =
        (Selection::default(), Vec::new(), KeyScratch::default());
    let mut reused = None;
    for (value, expected) in table {
        let request = [("caller", *value), ("next", "Next")];
        domain.select(&request, &mut selection, &mut matching);
        let key: Vec<_> = domain.transformed_key(0, &selection, &mut scratch).values().collect();
        assert_eq!(key, [*expected, "Next"], "{value}{transform}");
        // The longest value comes first: the buffer is not allocated again.
        assert_eq!(*reused.get_or_insert(key[0].as_ptr()), key[0].as_ptr(), "{value}{transform}");
    }
}

#[test]
fn normalizes_spellings_of_one_caller() {
    check("", &[("2001:DB8::1", "2001:DB8::1")]);
    check(", lowercase: true", &[("Ann@Example.COM", "ann@example.com"), ("ÉCOLE", "école")]);
    check(
        ", ipv6_prefix: 64",
        &[
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:0DB8:0001:2::ffff", "2001:db8:1:2::"),
            ("192.0.2.7:443", "192.0.2.7:443"),
            ("fe80::1%eth0", "fe80::1%eth0"),
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("::FFFF:c000:207", "192.0.2.7"),
            ("Unknown", "Unknown"),
        ],
    );
    check(", ipv6_prefix: 56", &[("2001:db8:1:2ff::1", "2001:db8:1:200::")]);
    check(", ipv6_prefix: 128", &[("2001:0db8:0::1", "2001:db8::1")]);
    check(", ipv6_prefix: 1", &[("ffff::1", "8000::")]);
    check(", ipv6_prefix: 16", &[("192.0.2.7", "192.0.2.7")]);
    check(", lowercase: true, ipv6_prefix: 64", &[("2001:DB8::1", "2001:db8::"), ("Unknown", "unknown")]);
}
