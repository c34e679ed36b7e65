//! `key_value` before patterns before the bare key, and no way back from where that leads.

use super::check;

const LIMIT: &str = "rate_limit: {unit: second, requests_per_unit: 1}";

/// A file of these descriptors, in flow style; `!` stands for a limit.
fn tree(descriptors: &[&str]) -> String {
    let lines = descriptors.iter().map(|one| format!("  - {{{}}}\n", one.replace('!', LIMIT)));
    format!("domain: api\ndescriptors:\n{}", lines.collect::<String>())
}

#[test]
fn the_text_comes_before_patterns_and_these_before_the_key() {
    let rows = &[
        ("k=abc", "k_abc"),
        ("k=ab", "k_ab*"),
        ("k=abd", "k_ab*"),
        ("k=a", "k_a*"),
        ("k=ax", "k_a*"),
        ("k=b", "k"),
        ("k=", "k"),
        ("k=Abc", "k"),
    ];
    // Wherever the exact node and the bare one stand.
    let [exact, longer, shorter, bare] =
        ["key: k, value: abc, !", "key: k, value: 'ab*', !", "key: k, value: 'a*', !", "key: k, !"];
    check(&tree(&[exact, longer, shorter, bare]), rows);
    check(&tree(&[bare, longer, shorter, exact]), rows);
    check(&tree(&[longer, bare, exact, shorter]), rows);
}

/// Trap: patterns are tried in file order, not the longest first.
#[test]
fn of_patterns_the_first_in_the_file_wins() {
    let rows = &[("k=abc", "k_a*"), ("k=ab", "k_a*"), ("k=xc", "k_*c"), ("k=ac", "k_a*"), ("k=x", "-")];
    check(&tree(&["key: k, value: 'a*', !", "key: k, value: 'ab*', !", "key: k, value: '*c', !"]), rows);
    let rows = &[("k=abc", "k_*c"), ("k=ab", "k_ab*"), ("k=a", "k_a*"), ("k=ac", "k_*c")];
    check(&tree(&["key: k, value: '*c', !", "key: k, value: 'ab*', !", "key: k, value: 'a*', !"]), rows);
    let rows = &[("k=abc", "k_*"), ("k=", "k_*"), ("k=c", "k_*")];
    check(&tree(&["key: k, value: '*', !", "key: k, value: 'ab*', !", "key: k, value: '*c', !"]), rows);
}

/// Trap: the text of a pattern is a text too, and comes before patterns that stand above it.
#[test]
fn a_request_may_carry_the_text_of_a_pattern() {
    let nodes = tree(&["key: k, value: 'a*', !", "key: k, value: 'ab*', !", "key: 'w*', !"]);
    check(
        &nodes,
        &[
            ("k=ab*", "k_ab*"),
            ("k=ab**", "k_a*"),
            ("k=a*", "k_a*"),
            ("w*=1", "w*"),
            ("w=1", "w*"),
            ("wide=1", "w*"),
        ],
    );
}

/// Trap: no backtracking. What the better node hides stays hidden.
#[test]
fn there_is_no_way_back() {
    let nodes = tree(&[
        "key: k, value: abc, descriptors: [{key: x, !}]",
        "key: k, value: 'ab*', descriptors: [{key: y, !}]",
        "key: k, value: 'a*', !, descriptors: [{key: z, !}]",
        "key: k, !, descriptors: [{key: x, !}, {key: y, !}, {key: z, !}, {key: w, !}]",
    ]);
    check(
        &nodes,
        &[
            // The exact node has no limit of its own: the patterns and the key that have one are not asked.
            ("k=abc", "-"),
            ("k=abc x=1", "k_abc.x"),
            ("k=abc y=1", "-"),
            ("k=abc w=1", "-"),
            // The first pattern has none either.
            ("k=abd", "-"),
            ("k=abd y=1", "k_ab*.y"),
            ("k=abd z=1", "-"),
            ("k=abd x=1", "-"),
            ("k=a", "k_a*"),
            ("k=a z=1", "k_a*.z"),
            ("k=a x=1", "-"),
            ("k=b", "k"),
            ("k=b w=1", "k.w"),
            ("k=b v=1", "-"),
        ],
    );
    // An allow list: these values have no limit, all others one.
    let nodes = tree(&["key: user, value: root", "key: user, value: 'bot-*'", "key: user, !"]);
    check(&nodes, &[("user=root", "-"), ("user=bot-1", "-"), ("user=roo", "user"), ("user=bot", "user")]);
}

/// Trap: an entry with an empty value is looked up as `key_` first.
#[test]
fn an_empty_value() {
    let nodes = tree(&["key: a_, !", "key: a, !", "key: b, !", "key: 'c_*', !", "key: c, !"]);
    check(
        &nodes,
        &[
            ("a=", "a_"),
            ("a=x", "a"),
            ("a_=x", "a_"),
            ("a_=", "a_"),
            ("b=", "b"),
            ("b_=", "-"),
            ("c=", "c_*"),
            ("c=x", "c_*"),
        ],
    );
    // `value: ""` is no value: the bare key.
    check(&tree(&["key: a, value: '', !"]), &[("a=", "a"), ("a=x", "a")]);
    check(&tree(&["key: a, value: ~, !"]), &[("a=", "a"), ("a=x", "a")]);
}

/// Trap: a node is known by one text. The key may end at any of its underscores.
#[test]
fn a_node_is_found_by_every_way_to_write_it() {
    let nodes = tree(&["key: a_b, !", "key: c, value: d_e, !", "key: f_g_h, descriptors: [{key: i_j, !}]"]);
    check(
        &nodes,
        &[
            ("a_b=x", "a_b"),
            ("a_b=", "a_b"),
            ("a=b", "a_b"),
            ("a=b_c", "-"),
            ("a=x", "-"),
            ("c=d_e", "c_d_e"),
            ("c_d=e", "c_d_e"),
            ("c_d_e=x", "c_d_e"),
            ("c=d", "-"),
            ("c_d=f", "-"),
            ("f=g_h i=j", "f_g_h.i_j"),
            ("f_g=h i_j=1", "f_g_h.i_j"),
            ("f_g_h=1 i=j", "f_g_h.i_j"),
            ("f=g i=j", "-"),
        ],
    );
}

#[test]
fn values_are_texts_and_compared_whole() {
    let nodes = tree(&[
        "key: n, value: 5, !",
        "key: n, value: yes, !",
        "key: n, value: 010, !",
        "key: n, value: 1_000, !",
        "key: n, value: true, !",
        "key: n, value: 0x1F, !",
        "key: n, value: 1.50, !",
        "key: n, value: 2001-12-14, !",
        "key: n, value: 'null', !",
        "key: n, value: 9223372036854775808, !",
        "key: 7, !",
        "key: n, value: /v1/été, !",
    ]);
    check(
        &nodes,
        &[
            ("n=5", "n_5"),
            ("n=05", "-"),
            // Trap: YAML 1.1 takes these for a boolean and an octal number; the text is what counts, there and here.
            ("n=yes", "n_yes"),
            ("n=Yes", "-"),
            ("n=true", "n_true"),
            ("n=010", "n_010"),
            ("n=8", "-"),
            ("n=1_000", "n_1_000"),
            ("n=1000", "-"),
            ("n=0x1F", "n_0x1F"),
            ("n=31", "-"),
            ("n=1.50", "n_1.50"),
            ("n=1.5", "-"),
            ("n=2001-12-14", "n_2001-12-14"),
            ("n=null", "n_null"),
            ("n=", "-"),
            ("n=9223372036854775808", "n_9223372036854775808"),
            ("7=x", "7"),
            ("n=/v1/été", "n__v1_été"),
            ("n=/v1/ete", "-"),
        ],
    );
}

/// Longer than a request can be: it is found all the same, and nothing panics.
#[test]
fn a_long_value() {
    let long = "x".repeat(3_000);
    let nodes = tree(&[&format!("key: k, value: {long}, !"), "key: k, value: 'y*z', !", "key: k, !"]);
    let name = format!("k_{}~", "x".repeat(244));
    let domain = super::domain(&nodes);
    assert!(super::shown(&domain, &[("k", &long)]).starts_with(&name));
    assert!(domain.rules()[0].name.len() == 255);
    check(
        &nodes,
        &[(&format!("k=y{long}z"), "k_y*z"), (&format!("k=z{long}"), "k"), (&format!("k{long}=1"), "-")],
    );
}
