//! What bad trees are told: line, column, a part of the message, a part of the mend, for every error in them.

use super::problems::{Told, errors, errors_listed};

#[track_caller]
fn check_file(text: &str, expected: &[Told<'_>]) {
    errors("tree.yaml", text, expected);
}

/// One descriptor in flow style: its fields start at line 3, column 4.
#[track_caller]
fn check(descriptor: &str, expected: Told<'_>) {
    check_file(&format!("domain: api\ndescriptors:\n- {{{descriptor}}}\n"), &[expected]);
}

/// The `rate_limit` of one descriptor: its fields start at line 3, column 25.
#[track_caller]
fn check_limit(rate_limit: &str, expected: Told<'_>) {
    check(&format!("key: k, rate_limit: {{{rate_limit}}}"), expected);
}

/// That service: `descriptor has empty key`.
#[test]
fn a_descriptor_has_a_key() {
    check("value: v", (3, 3, "a descriptor needs `key`", "write `key: NAME`"));
    check("", (3, 3, "a descriptor needs `key`", "as the application sends it"));
    check("key: , value: v", (3, 7, "a descriptor needs `key`", "write `key: NAME`"));
    check("key: '', value: v", (3, 9, "the `key` of a descriptor is empty", "name of the entry"));
    check("key: [k]", (3, 9, "`key` is a text, not a list", "one text"));
    check("key: k, value: [v]", (3, 19, "`value` is a text, not a list", "one text"));
    check("key: k, value: {}", (3, 19, "`value` is a text, not a mapping", "one text"));
}

/// That service: `duplicate descriptor composite key 'api.k_v'`.
#[test]
fn no_two_siblings_are_one() {
    let two = |one: &str, other: &str| format!("domain: api\ndescriptors:\n- {{{one}}}\n- {{{other}}}\n");
    let second = (4, 9, "a second descriptor `k` on its level", "the first is on line 3");
    check_file(&two("key: k", "key: k"), &[second]);
    check_file(&two("key: k, value: ''", "key: k"), &[second]);
    let second = (4, 9, "a second descriptor `k_5` on its level", "the first is on line 3");
    check_file(&two("key: k, value: 5", "key: k, value: '5'"), &[second]);
    check_file(&two("key: k, value: 5", "key: k, value: 5"), &[second]);
    // Trap: key and value are one text.
    let one = "the descriptor `a_b_c` is the one on line 3: key and value are compared as one text";
    let told = (4, 9, one, "either is found by both ways");
    check_file(&two("key: a, value: b_c", "key: a_b, value: c"), &[told]);
    check_file(&two("key: a_b_c", "key: a, value: b_c"), &[told]);
    check_file(&two("key: a_b, value: c", "key: a_b_c"), &[told]);
    // On every level, and each of them.
    let below = "domain: api\ndescriptors:\n- key: a\n  descriptors: [{key: k}, {key: k}, {key: l}, {key: k}]\n- key: a\n";
    let on_4 = "the first is on line 4";
    let second = "a second descriptor `k` on its level";
    check_file(
        below,
        &[(4, 33, second, on_4), (4, 53, second, on_4), (5, 8, "a second descriptor `a`", "line 3")],
    );
}

/// That service: `invalid rate limit unit 'foo'`.
#[test]
fn a_unit_is_one_of_seven() {
    let known = "known here: second, minute, hour, day, week, month, year";
    check_limit("requests_per_unit: 1", (3, 24, "`rate_limit` needs `unit`", "write `unit: second`, minute"));
    check_limit("", (3, 24, "`rate_limit` needs `unit`", "or `unlimited: true`"));
    check_limit("unit: , requests_per_unit: 1", (3, 24, "`rate_limit` needs `unit`", "year"));
    check_limit("unit: fortnight, requests_per_unit: 1", (3, 31, "unknown unit `fortnight`", known));
    check_limit("unit: unknown, requests_per_unit: 1", (3, 31, "unknown unit `unknown`", known));
    check_limit("unit: '', requests_per_unit: 1", (3, 31, "unknown unit ``", known));
    check_limit(
        "unit: Minutes, requests_per_unit: 1",
        (3, 31, "unknown unit `minutes`", "did you mean `minute`?"),
    );
    check_limit("unit: 5, requests_per_unit: 1", (3, 31, "unknown unit `5`", known));
    check_limit("unit: [day], requests_per_unit: 1", (3, 31, "`unit` is a text, not a list", "one text"));
}

/// That service: `should not specify rate limit unit when unlimited`.
#[test]
fn an_unlimited_one_has_no_unit() {
    let told = "an unlimited descriptor has no unit, and this says `day`";
    check_limit("unlimited: true, unit: day", (3, 48, told, "leave out `unit`, or `unlimited`"));
    check_limit("unit: DAY, unlimited: true", (3, 31, told, "or `unlimited`"));
}

/// That service: `cannot unmarshal … into uint32`; some of these it takes for another number.
#[test]
fn requests_are_a_whole_number() {
    let table: &[(&str, &str, &str)] = &[
        ("-5", "`-5` is negative", "write 0, which refuses every request, or more"),
        ("4294967296", "`4294967296` is too large", "at most 4294967295"),
        ("1.5", "`1.5` is not a whole number", "digits"),
        ("1e3", "`1e3` is not a whole number", "write 1000"),
        ("0x10", "`0x10` is not a whole number", "write 16"),
        ("'5'", "a number, not the text `5`", "without quotes"),
        ("five", "a number, not the text `five`", "in digits"),
        ("true", "a number, not the text `true`", "in digits"),
        ("[5]", "a number, not a list", "whole number"),
        ("+5", "`+5` is not a whole number", "write 5"),
        // Trap: numbers of YAML 1.1.
        ("010", "`010` is octal, and 8 to that service", "write 8, or the decimal number that is meant"),
        ("0o10", "`0o10` is octal, and 8 to that service", "write 8"),
    ];
    for (number, message, mend) in table {
        check_limit(&format!("unit: day, requests_per_unit: {number}"), (3, 55, message, mend));
    }
}

/// Trap: `yes` is `true` in YAML 1.1 and a text in YAML 1.2.
#[test]
fn a_flag_is_true_or_false() {
    for (word, meant) in [
        ("yes", "`true`"),
        ("Yes", "`true`"),
        ("y", "`true`"),
        ("on", "`true`"),
        ("'true'", "`true`"),
        ("1", "`true`"),
        ("no", "`false`"),
        ("off", "`false`"),
        ("N", "`false`"),
        ("'false'", "`false`"),
        ("0", "`false`"),
        ("maybe", "`true` or `false`"),
    ] {
        let mend = format!("write {meant}, without quotes");
        let shown = word.trim_matches('\'');
        let message = |field: &str| format!("`{field}` is true or false, not `{shown}`");
        check_limit(&format!("unlimited: {word}"), (3, 36, &message("unlimited"), &mend));
        for field in ["shadow_mode", "share_threshold", "quota_mode", "detailed_metric", "value_to_metric"] {
            let column = 14 + u32::try_from(field.len()).unwrap();
            check(&format!("key: k*, {field}: {word}"), (3, column + 1, &message(field), &mend));
        }
    }
    check("key: k, shadow_mode: [true]", (3, 25, "`shadow_mode` is true or false, not a list", "write"));
}

/// That service: `should not have an empty replaces entry`, `replaces should not contain name of same descriptor`.
#[test]
fn an_entry_of_replaces_names_another() {
    let replaces = |entries: &str| format!("unlimited: true, name: a, replaces: {entries}");
    let empty = "an entry of `replaces` is empty";
    check_limit(&replaces("[{name: ''}]"), (3, 69, empty, "leave the entry out"));
    check_limit(&replaces("[{name: }]"), (3, 62, empty, "`name` of the `rate_limit`"));
    check_limit(&replaces("[{}]"), (3, 62, empty, "leave the entry out"));
    check_limit(&replaces("[{name: b}, {name: a}]"), (3, 80, "`a` replaces itself", "name another limit"));
    check_limit(&replaces("[b]"), (3, 62, "a mapping, not a text", "such as `name: …`"));
    check_limit(&replaces("[[b]]"), (3, 62, "an entry of `replaces` is a mapping, not a list", "`name: …`"));
    check_limit(&replaces("b"), (3, 61, "`replaces` is a list, not a text", "`replaces: [{name: NAME}]`"));
    check_limit(&replaces("[{name: [b]}]"), (3, 69, "`name` is a text, not a list", "one text"));
    // Without a name of its own an empty entry is that, and no reference to itself.
    check_limit("unlimited: true, replaces: [{name: ''}]", (3, 60, empty, "leave the entry out"));
}

/// That service: `share_threshold can only be used with wildcard values (containing '*'), but found key 'k_v'`.
#[test]
fn only_a_pattern_shares() {
    let told = "`share_threshold` needs a `*`, and `k_v` has none";
    check("key: k, value: v, share_threshold: true", (3, 39, told, "write a pattern"));
    check("key: k, share_threshold: true", (3, 29, "and `k` has none", "leave `share_threshold` out"));
}

/// That service: `config error, unknown key 'ke'`, `key is not of type string`, `list of type other than map`.
#[test]
fn fields_are_known() {
    check("ke: k, key: k", (3, 4, "unknown field `ke` in a descriptor", "did you mean `key`?"));
    check("key: k, ratelimit: {}", (3, 12, "unknown field `ratelimit`", "did you mean `rate_limit`?"));
    check("key: k, limit: 5", (3, 12, "unknown field `limit` in a descriptor", "known here: key, value"));
    check_limit(
        "units: day, unit: day",
        (3, 25, "unknown field `units` in `rate_limit`", "did you mean `unit`?"),
    );
    check_limit(
        "unlimited: true, replaces: [{nam: b, name: c}]",
        (3, 54, "unknown field `nam` in an entry of `replaces`", "did you mean `name`?"),
    );
    check("key: k, [a]: b", (3, 12, "the name of a field is a text, not a list", "quotes"));
    // Trap: of a field that stands twice the last one counts, without a word.
    check("key: k, key: l", (3, 12, "`key` is written twice in a descriptor", "the first is on line 3"));
    check_limit("unit: day, unit: hour", (3, 36, "`unit` is written twice in `rate_limit`", "keep one"));
    let item = |item: &str| format!("domain: api\ndescriptors:\n- {item}\n");
    let told = "a descriptor is a mapping, not";
    check_file(&item("k"), &[(3, 3, told, "such as `key: …`")]);
    check_file(&item("[k]"), &[(3, 3, told, "`key: …`")]);
    check_file(&item("~"), &[(3, 3, told, "`key: …`")]);
    check("key: k, descriptors: {key: l}", (3, 25, "`descriptors` is a list, not a mapping", "`- key: …`"));
    check("key: k, descriptors: [l]", (3, 26, told, "`key: …`"));
    check("key: k, rate_limit: day", (3, 24, "`rate_limit` is a mapping, not a text", "`unit: …`"));
    check("key: k, rate_limit: []", (3, 24, "`rate_limit` is a mapping, not a list", "`unit: …`"));
    check("key: k, metadata: text", (3, 22, "`metadata` is a mapping, not a text", "no effect here"));
    check_file(
        "domain: api\ndescriptors: {key: k}\n",
        &[(2, 14, "`descriptors` is a list, not a mapping", "start each descriptor with a dash")],
    );
}

/// Trap: that service does not mind where a field stands, and does not say that it does nothing there.
#[test]
fn a_field_stands_in_its_place() {
    let beside = "it stands in a descriptor, beside `key`: move it there";
    check_limit(
        "unlimited: true, shadow_mode: true",
        (3, 42, "`shadow_mode` does nothing in `rate_limit`", beside),
    );
    check_limit("unlimited: true, quota_mode: true", (3, 42, "`quota_mode` does nothing", beside));
    check_limit("unlimited: true, share_threshold: true", (3, 42, "`share_threshold` does nothing", beside));
    check_limit("unlimited: true, descriptors: []", (3, 42, "`descriptors` does nothing", "in a descriptor"));
    check_limit(
        "unlimited: true, value: v",
        (3, 42, "`value` does nothing in `rate_limit`", "in a descriptor"),
    );
    for field in ["unit: day", "requests_per_unit: 5", "unlimited: true", "replaces: []", "name: a"] {
        let message = format!("`{}` does nothing in a descriptor", field.split(':').next().unwrap());
        check(&format!("key: k, {field}"), (3, 12, &message, "it stands in `rate_limit`: move it there"));
    }
    check("key: k, domain: x", (3, 12, "`domain` does nothing in a descriptor", "at the start of the file"));
    check_limit(
        "unlimited: true, replaces: [{name: b, unit: day}]",
        (3, 63, "`unit` does nothing in an entry of `replaces`", "in `rate_limit`"),
    );
    check_file(
        "domain: api\nkey: k\ndescriptors: []\n",
        &[(2, 1, "unknown field `key` in a rules file", "known here")],
    );
}

/// All that is wrong with a file is told at once.
#[test]
fn every_error_is_told() {
    let text = "
domain: api
descriptors:
  - value: v
    rate_limit: {unit: eon, shadow_mode: true}
    descriptors:
      - {key: k, shadow_mode: on}
      - {key: k, value: '', rate_limit: {unit: day, requests_per_unit: -1}}
";
    errors_listed(
        "tree.yaml",
        text,
        "4:5 needs `key`
         5:24 unknown unit `eon`
         5:29 `shadow_mode` does nothing
         7:31 `shadow_mode` is true or false
         8:15 a second descriptor `k`
         8:72 `-1` is negative",
    );
}
