//! Patterns: every star is any run of characters, over the whole of `key_value`.

use super::{check, domain, shown};

/// Whether a pattern fits, as the value of `k`.
#[track_caller]
fn check_fits(pattern: &str, values: &[(&str, bool)]) {
    let text = format!(
        "domain: api\ndescriptors:\n- {{key: k, value: '{pattern}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
    );
    let domain = domain(&text);
    for (value, fits) in values {
        let found = shown(&domain, &[("k", value)]) != "-";
        assert_eq!(found, *fits, "{pattern:?} on {value:?}");
    }
}

#[test]
fn a_star_is_any_run_of_characters() {
    check_fits("*", &[("", true), ("a", true), ("a/b_c*d", true), ("é", true)]);
    check_fits("**", &[("", true), ("a", true)]);
    check_fits("foo*", &[("foo", true), ("foobar", true), ("fo", false), ("xfoo", false), ("FOO", false)]);
    check_fits("*foo", &[("foo", true), ("xfoo", true), ("foox", false), ("", false)]);
    check_fits("*foo*", &[("foo", true), ("xfoox", true), ("xfo", false), ("fxoo", false)]);
    check_fits("/api/*", &[("/api/", true), ("/api/v1/users", true), ("/api", false), ("/apix", false)]);
}

#[test]
fn pieces_stand_in_order_and_share_nothing() {
    check_fits(
        "a*b",
        &[("ab", true), ("axb", true), ("aab", true), ("a", false), ("ba", false), ("abx", false)],
    );
    // Prefix and suffix may not share a character.
    check_fits("aa*aa", &[("aaaa", true), ("aaa", false), ("aaxaa", true), ("aa", false)]);
    check_fits("aba*aba", &[("aba", false), ("ababa", false), ("abaaba", true)]);
    check_fits(
        "foo*bar*baz",
        &[("foobarbaz", true), ("foo-bar-baz", true), ("foobazbar", false), ("foobaz", false)],
    );
    // A piece in the middle is found behind the one before it, and before the last.
    check_fits("*ab*ab*", &[("ab", false), ("aab", false), ("abab", true), ("abxab", true), ("aba", false)]);
    check_fits("a*b*c", &[("abc", true), ("acb", false), ("abbc", true), ("ac", false), ("abcc", true)]);
    check_fits("a*bc*c", &[("abc", false), ("abcc", true), ("abcbc", true)]);
    check_fits("x**y", &[("xy", true), ("xzy", true), ("x", false)]);
}

/// Trap: there is no escape.
#[test]
fn nothing_escapes_a_star() {
    check_fits(r"a\*", &[(r"a\", true), (r"a\b", true), ("a*", false), ("ab", false)]);
    check_fits(r"\", &[(r"\", true), ("", false)]);
    check_fits("a?c", &[("a?c", true), ("abc", false)]);
    check_fits("[ab]*", &[("[ab]x", true), ("a", false)]);
}

/// Trap: a star in the key is one too, and what follows it may lie in the value.
#[test]
fn a_star_may_stand_in_the_key() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let tree = format!(
        "domain: api
descriptors:
- {{key: 'path*', value: get, {limit}}}
- {{key: 'x*y', {limit}}}
- {{key: '*_end', {limit}}}
- {{key: 'a*', value: '*z', {limit}}}
- {{key: 'both*', {limit}}}
"
    );
    check(
        &tree,
        &[
            ("path=get", "path*_get"),
            ("paths=get", "path*_get"),
            ("path_of=get", "path*_get"),
            ("path=x_get", "path*_get"),
            ("path=put", "-"),
            ("pat=get", "-"),
            // Of a pattern that is a key alone the value is the rest.
            ("x=y", "x*y"),
            ("x=ay", "x*y"),
            ("xa=by", "x*y"),
            ("xy=b", "-"),
            ("xy=by", "x*y"),
            ("any=end", "*_end"),
            ("any=the_end", "*_end"),
            ("end=any", "-"),
            ("a=z", "a*_*z"),
            ("ab=cz", "a*_*z"),
            ("ab=c", "-"),
            ("both=", "both*"),
            ("both=1", "both*"),
            ("both_of=1", "both*"),
            ("bot=h", "-"),
        ],
    );
}

/// Patterns on a level below the first, and many that start alike or differently.
#[test]
fn patterns_below_others() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let tree = format!(
        "domain: api
descriptors:
- key: p
  value: 'a*'
  descriptors:
    - {{key: q, value: '*b', {limit}}}
    - key: q
      value: 'c*'
      descriptors: [{{key: r, value: 'd*e', {limit}}}]
- {{key: p, value: 'ab*', {limit}}}
"
    );
    check(
        &tree,
        &[
            ("p=ax q=xb", "p_a*.q_*b"),
            ("p=ab q=cb", "p_a*.q_*b"),
            ("p=ab", "-"),
            ("p=a q=c r=de", "p_a*.q_c*.r_d*e"),
            ("p=a q=cb r=de", "-"),
            ("p=b q=b", "-"),
        ],
    );
}

#[test]
fn of_many_patterns_the_first_that_fits_is_found() {
    let node = |pattern: &str| {
        format!("- {{key: k, value: '{pattern}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n")
    };
    let nodes: String = (0..2_000).map(|number| node(&format!("/{number}/*"))).collect();
    let text = format!("domain: api\ndescriptors:\n{}{nodes}{}", node("*.png"), node("/*"));
    check(
        &text,
        &[
            ("k=/7/x", "k__7_*"),
            ("k=/77/x", "k__77_*"),
            ("k=/1999/", "k__1999_*"),
            ("k=/2000/", "k__*"),
            ("k=/7", "k__*"),
            ("k=/7/x.png", "k_*.png"),
            ("k=7/x", "-"),
        ],
    );
}
