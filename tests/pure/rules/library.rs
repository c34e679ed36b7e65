//! Reloads of rules: the domains that are swapped or kept, and the reported changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidegate::clock::read_boot_nanos;
use tidegate::rules::{Domain, Library, NotApplied, OpenFiles, Reading};

use super::problems::folder;
use super::shown;

/// A directory of rules and the library that reads it.
struct Bench {
    directory: TempDir,
    library: Library,
}

impl Bench {
    fn new(files: &[(&str, &str)]) -> Bench {
        let directory = folder(files);
        Bench { library: Library::new(directory.path()), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Reloads to these domains, with these reported changes.
    #[track_caller]
    fn reads(&mut self, domains: &str, changes: &[&str]) -> Reading {
        let reading = self.reads_beside(&[], domains, changes);
        assert!(!self.library.is_outdated());
        reading
    }

    /// Reads while a writer has these files open.
    #[track_caller]
    fn reads_beside(&mut self, open: &[&str], domains: &str, changes: &[&str]) -> Reading {
        let open: OpenFiles = open.iter().map(|name| self.path(name).canonicalize().unwrap()).collect();
        let reading = self.library.read_beside(&open);
        let mut shown = vec![self.shown()];
        shown.extend(reading.kept.iter().map(|name| format!("kept {name}")));
        shown.extend(reading.without.iter().map(|name| format!("without {name}")));
        assert_eq!(shown.join("; ").trim_start_matches("; "), domains, "{:#?}", reading.problems);
        assert_eq!(reading.changes, changes);
        assert_eq!(reading.halt, None);
        assert!(!self.library.is_outdated_beside(&open));
        reading
    }

    /// Reloads without a change, and returns why nothing was swapped.
    #[track_caller]
    fn halts(&mut self) -> NotApplied {
        let before = (self.shown(), self.library.domains());
        let reading = self.library.read();
        assert!(same(&before.1, &self.library.domains()), "{} is now {}", before.0, self.shown());
        assert!(reading.changes.is_empty() && !reading.is_good());
        assert!(reading.problems.iter().any(tidegate::rules::Problem::is_error), "it is said where");
        reading.halt.expect("nothing is swapped")
    }

    /// As in [`shown`].
    fn shown(&self) -> String {
        shown(&self.library.domains())
    }

    fn domain(&self, name: &str) -> Arc<Domain> {
        self.library.domains().into_iter().find(|domain| domain.name() == name).unwrap()
    }
}

fn same(one: &[Arc<Domain>], other: &[Arc<Domain>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one, other))
}

const API_A: &str = "domain: api\nlimits:\n- {name: a, key: [], rate: 1/s}\n";
const API_B: &str = "domain: api\nlimits:\n- {name: b, key: [u], rate: 1/s}\n";
const WEB_C: &str = "domain: web\nlimits:\n- {name: c, key: [], rate: 1/s}\n";
const WEB_D: &str = "domain: web\nlimits:\n- {name: d, key: [], rate: 1/s}\n";
const API_BAD: &str = "domain: api\nlimits:\n- {name: a, key: [], rate: 1/sec}\n";

const D_FOR_C: &[&str] =
    &["web/d: added: key [], algorithm token_bucket, rate 1/s, burst 1, mode enforce", "web/c: removed"];

#[test]
fn failed_domain_keeps_last_good_rules_and_others_swap() {
    let mut bench = Bench::new(&[("a.yaml", API_A), ("c.yaml", WEB_C)]);
    let changes = ["api: new, 1 rule", "web: new, 1 rule"];
    assert!(bench.reads("api: a; web: c", &changes).is_good());
    bench.write("a.yaml", API_BAD);
    bench.write("c.yaml", WEB_D);
    let reading = bench.reads("web: d; api: a; kept api", D_FOR_C);
    assert!(!reading.is_good());
    assert!(reading.problems[0].to_string().contains("a.yaml:3:28: error: unknown unit"));
    // Kept over further reloads, whatever the fault.
    for broken in [API_BAD, "domain: api\nlimits: [\n", "domain: api\n\u{1}", "", "limits: []", "{["] {
        bench.write("a.yaml", broken);
        bench.reads("web: d; api: a; kept api", &[]);
    }
    // Repaired: the changes are those against the rules in force.
    bench.write("a.yaml", &API_A.replace("1/s", "2/s"));
    let changes = ["api/a: rate 1/s → 2/s, burst 1 → 2"];
    let reading = bench.reads("api: a; web: d", &changes);
    assert!(reading.is_good());
}

#[test]
fn domain_without_good_rules_has_none() {
    let mut bench = Bench::new(&[("a.yaml", API_BAD), ("c.yaml", WEB_C)]);
    let changes = ["web: new, 1 rule"];
    bench.reads("web: c; without api", &changes);
    bench.reads("web: c; without api", &[]);
    bench.write("a.yaml", API_A);
    bench.reads("api: a; web: c", &["api: new, 1 rule"]);
}

#[test]
fn one_bad_file_keeps_old_rules_of_its_domain() {
    let mut bench = Bench::new(&[("a.yaml", API_A), ("b.yaml", API_B)]);
    bench.reads("api: a b", &["api: new, 2 rules"]);
    // The first file is good and new, the second one bad: nothing of the first may take effect.
    bench.write("a.yaml", &API_A.replace("1/s", "9/s"));
    bench.write("b.yaml", API_BAD);
    bench.reads("api: a b; kept api", &[]);
    assert_eq!(bench.domain("api").rules()[0].limit.quota().unwrap().format_rate(), "1/s");
    // Removal is no fault.
    bench.remove("b.yaml");
    let changes = ["api/a: rate 1/s → 9/s, burst 1 → 9", "api/b: removed"];
    bench.reads("api: a", &changes);
}

#[test]
fn open_file_holds_back_its_domains_alone() {
    let mut bench = Bench::new(&[("a.yaml", API_A), ("b.yaml", API_B), ("c.yaml", WEB_C)]);
    bench.library.read();
    bench.write("a.yaml", &API_A.replace("1/s", "2/s"));
    bench.write("c.yaml", WEB_D);
    // Parts of a valid file: some are valid too.
    let mut changes = D_FOR_C;
    for (part, domains) in [
        ("", "web: d; api: a b"),
        ("domain: api", "web: d; api: a b"),
        ("domain: api\nlimits:\n- {na", "web: d; api: a b"),
        ("domain: ap", "web: d; api: a b"),
        ("domain: web\nlimits: [", "api: a b; web: d"),
    ] {
        bench.write("b.yaml", part);
        let reading = bench.reads_beside(&["b.yaml"], domains, changes);
        assert!(reading.is_good(), "{part}: {:?}", reading.problems);
        changes = &[];
    }
    bench.write("b.yaml", API_B);
    assert!(bench.library.is_outdated(), "it was not read");
    let changes = ["api/a: rate 1/s → 2/s, burst 1 → 2"];
    bench.reads("api: a b; web: d", &changes);
}

#[test]
fn open_new_file_neither_stops_others_nor_hides_errors() {
    let mut bench = Bench::new(&[("a.yaml", API_BAD), ("c.yaml", WEB_C)]);
    bench.library.read();
    bench.write("c.yaml", WEB_D);
    bench.write("n.yaml", "- what is this");
    bench.reads_beside(&["n.yaml"], "web: d; without api", D_FOR_C);
    // A domain with errors has them until its file is closed.
    bench.write("a.yaml", "domain: api\n");
    let reading = bench.reads_beside(&["a.yaml", "n.yaml"], "web: d; without api", &[]);
    assert!(!reading.is_good());
}

#[test]
fn open_table_holds_back_domains_that_name_it() {
    let limit = "limits:\n- {name: a, key: [u], rate: 1/s, overrides_file: rows.csv}\n";
    let rows = "u,rate\nx,5/s\n";
    let api = format!("domain: api\n{limit}");
    let mut bench = Bench::new(&[("a.yaml", &*api), ("c.yaml", WEB_C), ("rows.csv", rows)]);
    assert!(bench.library.read().is_good());
    let held = bench.domain("api");
    bench.write("c.yaml", WEB_D);
    let mut changes = D_FOR_C;
    for part in ["u,rate\n", "u,ra"] {
        bench.write("rows.csv", part);
        assert!(bench.reads_beside(&["rows.csv"], "web: d; api: a", changes).is_good());
        assert!(Arc::ptr_eq(&held, &bench.domain("api")), "{part}");
        changes = &[];
    }
}

#[test]
fn unparsable_file_counts_for_its_former_domain() {
    let mut bench = Bench::new(&[("a.yaml", API_A), ("b.yaml", API_B), ("c.yaml", WEB_C)]);
    bench.library.read();
    bench.write("b.yaml", "%%%");
    bench.write("c.yaml", WEB_D);
    bench.reads("web: d; api: a b; kept api", D_FOR_C);
    // It names another domain now, but is unreadable: its rules of the first are still missing.
    bench.write("b.yaml", "domain: web\nlimits: [");
    bench.reads("api: a b; web: d; kept api; kept web", &[]);
    // It is readable, and belongs to another domain.
    bench.write("b.yaml", &API_B.replace("api", "web"));
    bench.library.read();
    assert_eq!(bench.shown(), "api: a; web: b d");
}

#[test]
fn new_file_without_domain_stops_all_swaps_until_fixed() {
    let mut bench = Bench::new(&[("a.yaml", API_A), ("c.yaml", WEB_C)]);
    bench.library.read();
    bench.write("n.yaml", "- what is this");
    bench.write("c.yaml", WEB_D);
    let file = bench.path("n.yaml").to_str().unwrap().into();
    assert_eq!(bench.halts(), NotApplied::Homeless(vec![file]));
    assert_eq!(bench.shown(), "api: a; web: c");
    bench.remove("n.yaml");
    bench.reads("api: a; web: d", D_FOR_C);
}

#[test]
fn loads_other_domains_at_start() {
    let mut bench = Bench::new(&[("a.yaml", API_A), ("n.yaml", "- what is this")]);
    let reading = bench.reads("api: a", &["api: new, 1 rule"]);
    assert!(!reading.is_good());
    // Also when the start waited for the directory.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut library = Library::new(&elsewhere.path().join("rules"));
    assert_eq!(library.read().halt, Some(NotApplied::Unlisted));
    symlink(bench.directory.path(), elsewhere.path().join("rules")).unwrap();
    assert!(library.is_outdated());
    assert_eq!(library.read().halt, None);
    assert_eq!(library.domains().len(), 1);
}

#[test]
fn unlistable_directory_changes_nothing() {
    let mut bench = Bench::new(&[("a.yaml", API_A)]);
    bench.library.read();
    let away = bench.path("away");
    let rules = bench.path("rules");
    fs::create_dir(&rules).unwrap();
    fs::write(rules.join("c.yaml"), WEB_C).unwrap();
    let mut bench = Bench { library: Library::new(&rules), ..bench };
    bench.library.read();
    fs::rename(&rules, &away).unwrap();
    assert!(bench.library.is_outdated());
    assert_eq!(bench.halts(), NotApplied::Unlisted);
    assert!(!bench.library.is_outdated(), "said once");
    fs::rename(&away, &rules).unwrap();
    assert!(bench.library.is_outdated());
    bench.reads("web: c", &[]);
    // An empty directory differs: the files were removed.
    fs::remove_file(rules.join("c.yaml")).unwrap();
    bench.reads("", &["web: removed with its 1 rule: it has NO LIMITS now"]);
}

#[test]
fn rereads_file_with_its_tables() {
    let bench = Bench::new(&[("rules.txt", API_A), ("rows.csv", "1"), ("other.csv", "1"), ("notes.txt", "")]);
    let mut bench = Bench { library: Library::new(&bench.path("rules.txt")), ..bench };
    bench.library.read();
    bench.write("rows.csv", "2");
    bench.write("notes.txt", "2");
    assert!(!bench.library.is_outdated(), "nobody named it");
    bench.write("rules.txt", &format!("# see rows.csv\n{API_A}"));
    assert!(bench.library.is_outdated());
    bench.library.read();
    bench.write("other.csv", "3");
    assert!(!bench.library.is_outdated());
    bench.write("rows.csv", "3");
    assert!(bench.library.is_outdated());
    bench.library.read();
    bench.remove("rules.txt");
    assert_eq!(bench.halts(), NotApplied::Unlisted);
}

#[test]
fn outdated_means_changed_contents() {
    let mut bench = Bench::new(&[("a.yaml", API_A), ("rows.csv", "1"), (".hidden", "1")]);
    assert!(bench.library.is_outdated(), "never read");
    bench.library.read();
    type Step<'s> = (&'s str, bool, &'s dyn Fn(&Bench));
    let steps: &[Step<'_>] = &[
        ("the same bytes again", false, &|bench| bench.write("a.yaml", API_A)),
        ("another file with the same bytes", false, &|bench| {
            bench.write(".new", API_A);
            fs::rename(bench.path(".new"), bench.path("a.yaml")).unwrap();
        }),
        ("behind a dot", false, &|bench| bench.write(".hidden", "2")),
        ("of no kind that is read", false, &|bench| bench.write("daemon.log", "grows")),
        ("a directory", false, &|bench| fs::create_dir(bench.path("sub")).unwrap()),
        ("another byte, as many of them", true, &|bench| bench.write("a.yaml", &API_A.replace("1/s", "2/s"))),
        ("a table", true, &|bench| bench.write("rows.csv", "2")),
        ("a new file", true, &|bench| bench.write("b.yaml", API_B)),
        ("another name", true, &|bench| fs::rename(bench.path("b.yaml"), bench.path("c.yaml")).unwrap()),
        ("one less", true, &|bench| bench.remove("c.yaml")),
        ("a link to nothing", true, &|bench| symlink("nothing", bench.path("l.yaml")).unwrap()),
        ("something behind the link", true, &|bench| bench.write("nothing", WEB_C)),
        ("that cannot be read", true, &|bench| {
            bench.remove("nothing");
            fs::create_dir(bench.path("nothing")).unwrap();
        }),
    ];
    for (what, outdated, step) in steps {
        step(&bench);
        assert_eq!(bench.library.is_outdated(), *outdated, "{what}");
        bench.library.read();
        assert!(!bench.library.is_outdated(), "{what}");
    }
}

#[test]
fn shares_unchanged_domains() {
    let mut bench = Bench::new(&[("a.yaml", API_A), ("c.yaml", WEB_C)]);
    bench.library.read();
    let (api, web) = (bench.domain("api"), bench.domain("web"));
    let content =
        |bench: &Bench| bench.library.fingerprints().map(|(_, content)| content).collect::<Vec<_>>();
    let before = content(&bench);
    bench.library.read();
    assert!(same(&bench.library.domains(), &[Arc::clone(&api), Arc::clone(&web)]));
    // A comment moves the rules in their file: no reported change, but the new spans are known.
    bench.write("c.yaml", &format!("# moved\n{WEB_C}"));
    bench.reads("api: a; web: c", &[]);
    assert!(Arc::ptr_eq(&bench.domain("api"), &api));
    assert_eq!(bench.domain("web").rules()[0].position.line, 4);
    assert_eq!((content(&bench)[0], content(&bench)[1] == before[1]), (before[0], false));
    // Any rule may refer to a table.
    bench.write("rows.csv", "1");
    bench.library.read();
    assert!(!Arc::ptr_eq(&bench.domain("api"), &api));
    // The same rules in another directory look the same.
    let other = Bench::new(&[("a.yaml", API_A), ("c.yaml", WEB_C)]);
    let mut other = other;
    other.library.read();
    assert_eq!(content(&other), before);
}

#[test]
fn never_mixes_two_versions() {
    let bench = Bench::new(&[]);
    let swap = |number: u32| {
        let version = bench.path(&format!("..{number}"));
        fs::create_dir(&version).unwrap();
        for file in 0..FILES {
            let text =
                format!("domain: api\nlimits: [{{name: r{file}, key: [], rate: 1/s, burst: {number}}}]\n");
            fs::write(version.join(format!("{file}.yaml")), text).unwrap();
        }
        symlink(format!("..{number}"), bench.path("..next")).unwrap();
        fs::rename(bench.path("..next"), bench.path("..data")).unwrap();
    };
    swap(1);
    for file in 0..FILES {
        symlink(format!("..data/{file}.yaml"), bench.path(&format!("{file}.yaml"))).unwrap();
    }
    let mut library = Library::new(bench.directory.path());
    library.read();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (2..).take_while(|_| !done.load(Ordering::Relaxed)) {
                swap(number);
                fs::remove_dir_all(bench.path(&format!("..{}", number - 1))).unwrap();
                std::thread::sleep(Duration::from_millis(u64::from(number % 100 / 5)));
            }
        });
        let (mut torn, mut halts) = (None, 0);
        // A fast machine usually reads everything between two versions.
        let (begin, mut readings) = (read_boot_nanos(), 0);
        while readings < 30 || (halts == 0 && read_boot_nanos() - begin < PATIENCE_NANOS) {
            readings += 1;
            halts += usize::from(library.read().halt == Some(NotApplied::Unsettled));
            let bursts: Vec<_> =
                library.domains()[0].rules().iter().map(|rule| rule.limit.quota().unwrap().limit()).collect();
            torn = torn.or((bursts != [bursts[0]; FILES]).then_some(bursts));
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(torn, None, "of several versions");
        assert!(halts > 0, "some readings were disturbed again and again");
    });
    assert_eq!(library.read().halt, None, "they stand still");
    assert!(library.domains()[0].rules()[0].limit.quota().unwrap().limit() > 1);
}

const FILES: usize = 20;
const PATIENCE_NANOS: u64 = 30_000_000_000;
