//! Fails on known broken versions in Cargo.lock. The list is short, kept by hand and needs no network; it
//! lacks later advisories.

/// Crates with the first good version of each series, and its advisory (of the RustSec database). Crates that
/// are not in use are listed in case another one pulls them in.
const FLOORS: &[(&str, &[&str], &str)] = &[
    ("bytes", &["1.11.1"], "RUSTSEC-2026-0007: an overflow in `BytesMut::reserve`"),
    ("lru", &["0.18.2"], "RUSTSEC-2026-0253: a use after free where a panic is caught, as it is here"),
    ("protobuf", &["3.7.2"], "RUSTSEC-2024-0437: recursion without an end"),
    ("rand", &["0.8.6", "0.9.3", "0.10.1"], "RUSTSEC-2026-0097: unsound with a logger that asks it"),
    ("rmp-serde", &["1.1.1"], "RUSTSEC-2022-0092: unsound `Raw`"),
    ("rmpv", &["0.4.2"], "RUSTSEC-2017-0006: memory for a length that was only told"),
    ("slab", &["0.4.11"], "RUSTSEC-2025-0047: out of bounds"),
    ("time", &["0.3.47"], "RUSTSEC-2026-0009: a stack used up"),
    ("tokio", &["1.44.2"], "RUSTSEC-2025-0023: a broadcast clones without `Sync`"),
    ("tracing-subscriber", &["0.3.20"], "RUSTSEC-2025-0055: escape sequences in a log"),
];

/// Returns the packages of a lock file below their floor, with the reason.
fn known_broken(lock: &str) -> Vec<String> {
    let packages = lock.split("[[package]]").filter_map(|package| {
        let value = |key: &str| {
            let of_key = |line: &'_ str| line.strip_prefix(key).map(|rest| rest.trim_matches('"').to_owned());
            package.lines().find_map(of_key)
        };
        Some((value("name = ")?, value("version = ")?))
    });
    let broken = packages.filter_map(|(name, version)| {
        let (_, floors, advisory) = FLOORS.iter().find(|(known, ..)| *known == name)?;
        (!is_good(&version, floors)).then(|| format!("{name} {version}, good from {floors:?}: {advisory}"))
    });
    broken.collect()
}

/// A version is good from the floor of its series on; one of an unlisted series must be above all floors.
fn is_good(version: &str, floors: &[&str]) -> bool {
    let version = numbers(version);
    let floors: Vec<_> = floors.iter().map(|floor| numbers(floor)).collect();
    match floors.iter().find(|floor| series(floor) == series(&version)) {
        Some(floor) => version >= *floor,
        None => floors.iter().all(|floor| version > *floor),
    }
}

fn numbers(version: &str) -> [u64; 3] {
    let plain = version.split(['-', '+']).next().unwrap();
    let numbers: Vec<u64> = plain.split('.').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// Cargo's compatible series: up to the first number that is not zero.
fn series(version: &[u64; 3]) -> &[u64] {
    let first = version.iter().position(|number| *number > 0).unwrap_or(2);
    &version[..=first]
}

#[test]
fn locks_no_known_broken_version() {
    let lock = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock");
    let lock = std::fs::read_to_string(lock).unwrap();
    assert!(lock.contains("name = \"tokio\"\n"), "packages are found");
    let broken = known_broken(&lock);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn finds_a_broken_version() {
    let table = [
        ("bytes", "1.11.0", false),
        ("bytes", "1.11.1", true),
        ("bytes", "1.12.0+build", true),
        ("bytes", "0.5.6", false),
        ("rand", "0.8.5", false),
        ("rand", "0.8.6", true),
        ("rand", "0.9.2", false),
        ("rand", "0.10.0", false),
        ("rand", "0.7.9", false),
        ("rand", "0.11.0", true),
        ("lru", "0.16.4", false),
        ("lru", "1.0.0-rc.1", true),
        ("anything", "0.0.1", true),
    ];
    for (name, version, good) in table {
        let lock = format!(
            "version = 4\n\n[[package]]\nname = \"other\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"{name}\"\n\
             version = \"{version}\"\ndependencies = [\n \"tokio\",\n]\n"
        );
        assert_eq!(known_broken(&lock).is_empty(), good, "{name} {version}: {:?}", known_broken(&lock));
    }
}
