//! What a hit counts by: every entry's key and value, or the pattern where all that it matches count together.

use super::{descriptor, domain, shown};

/// For each descriptor its rule and what it counts by.
#[track_caller]
fn check(text: &str, selections: &[(&str, &str)]) {
    let domain = domain(text);
    for (written, expected) in selections {
        assert_eq!(shown(&domain, &descriptor(written)), *expected, "{written:?} in\n{text}");
    }
}

#[test]
fn each_value_counts_apart() {
    let tree = "
domain: api
descriptors:
  - {key: user, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: path, value: '/a/*', rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: 'w*', rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: fixed, value: x_y, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: tier
    value: free
    descriptors:
      - {key: user, rate_limit: {unit: second, requests_per_unit: 1}}
";
    check(
        tree,
        &[
            ("user=a", "user: user=a"),
            ("user=", "user: user="),
            ("path=/a/1", "path__a_*: path=/a/1"),
            ("path=/a/", "path__a_*: path=/a/"),
            ("wide=1", "w*: wide=1"),
            ("fixed=x_y", "fixed_x_y: fixed=x_y"),
            ("tier=free user=a", "tier_free.user: tier=free user=a"),
            ("tier=free user=b", "tier_free.user: tier=free user=b"),
        ],
    );
}

#[test]
fn what_a_shared_pattern_matches_counts_together() {
    let tree = "
domain: api
descriptors:
  - {key: files, value: 'files/*', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: mid, value: 'a*b*c', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: part, value: 'p*', share_threshold: true, descriptors: [{key: x, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: part, value: 'q*', descriptors: [{key: x, value: '*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - key: part
    value: r*
    share_threshold: true
    descriptors:
      - {key: part, value: 's*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
      - key: part
        value: t*
        descriptors:
          - {key: part, value: 'u*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
";
    check(
        tree,
        &[
            ("files=files/a", "files_files_*: files=files/*"),
            ("files=files/b/c", "files_files_*: files=files/*"),
            // Trap: the text of the pattern as a value finds the node as a text, and is on the same counter.
            ("files=files/*", "files_files_*: files=files/*"),
            ("mid=a1b2c", "mid_a*b*c: mid=a*b*c"),
            ("mid=abc", "mid_a*b*c: mid=a*b*c"),
            // Shared on the way, apart at the end.
            ("part=p1 x=1", "part_p*.x: part=p* x=1"),
            ("part=p2 x=1", "part_p*.x: part=p* x=1"),
            ("part=p2 x=2", "part_p*.x: part=p* x=2"),
            // Apart on the way, shared at the end.
            ("part=q1 x=1", "part_q*.x_*: part=q1 x=*"),
            ("part=q2 x=2", "part_q*.x_*: part=q2 x=*"),
            // Trap: by place in the descriptor, not by name; one name may come more than once.
            ("part=r1 part=s1", "part_r*.part_s*: part=r* part=s*"),
            ("part=r1 part=t1 part=u1", "part_r*.part_t*.part_u*: part=r* part=t1 part=u*"),
            ("part=r2 part=t2 part=u2", "part_r*.part_t*.part_u*: part=r* part=t2 part=u*"),
        ],
    );
}

/// Trap: `share_threshold` does nothing where the text or the bare key brought the entry to its node.
#[test]
fn only_what_came_by_the_pattern_is_shared() {
    let tree = "
domain: api
descriptors:
  - {key: file, value: test1, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: file, value: 'test*', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: file, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: 'k*', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: 'x*y', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: 'long*', value: v, share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
";
    check(
        tree,
        &[
            ("file=test1", "file_test1: file=test1"),
            ("file=test2", "file_test*: file=test*"),
            ("file=other", "file: file=other"),
            // The star begins in the key: the whole pattern stands for the value, and each key counts apart.
            ("ka=1", "k*: ka=k*"),
            ("ka=2", "k*: ka=k*"),
            ("kb=1", "k*: kb=k*"),
            ("k=1", "k*: k=k*"),
            ("k*=1", "k*: k*=k*"),
            // By the pattern, and by the bare key: the text of the pattern, where it does not fit what follows.
            ("x=y", "x*y: x=x*y"),
            ("x*y=v", "x*y: x*y=v"),
            ("longer=v", "long*_v: longer=long*_v"),
            ("long*=v", "long*_v: long*=v"),
        ],
    );
}

#[test]
fn whoever_is_counted_is_the_key_of_the_rule() {
    let tree = "
domain: api
limits:
  - {name: all, key: [], rate: 1/s}
descriptors:
  - key: tier
    value: free
    descriptors:
      - {key: user, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: tier
    descriptors:
      - {key: path, value: '/a*', rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: path, value: '/b*', share_threshold: true, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: all, value: of_them, rate_limit: {unit: second, requests_per_unit: 1}}
";
    let domain = domain(tree);
    let rules = domain.rules().iter().map(|rule| {
        let key: Vec<_> = rule.key.iter().map(|part| &*part.attribute).collect();
        format!("{}: {}", rule.name, key.join(" "))
    });
    let expected =
        ["all: ", "tier_free.user: user", "tier.path__a*: tier path", "tier.path__b*: tier", "all_of_them: "];
    assert_eq!(rules.collect::<Vec<_>>(), expected);
}
