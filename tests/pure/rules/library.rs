//! Reloads of rules: the domains that are swapped or kept, and the reported changes, as `reloads.txt` has them;
//! `UPDATE_DOCS=1 cargo test --test pure library` writes the answers anew.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidegate::clock::read_boot_nanos;
use tidegate::rules::{Domain, Library, NotApplied, OpenFiles};

use super::problems::folder;
use super::shown;
use crate::docs::keep_each;

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
    fn reads(&mut self, domains: &str, changes: &[&str]) {
        let reading = self.library.read();
        assert_eq!((self.shown().as_str(), reading.halt), (domains, None), "{:#?}", reading.problems);
        assert_eq!(reading.changes, changes);
        assert!(!self.library.is_outdated());
    }

    /// Reads while a writer has these files open: the domains, those without their new rules, changes and problems.
    fn read_beside(&mut self, open: &[&str]) -> Vec<String> {
        let open: OpenFiles = open.iter().map(|name| self.path(name).canonicalize().unwrap()).collect();
        let before = self.library.domains();
        let reading = self.library.read_beside(&open);
        assert!(!self.library.is_outdated_beside(&open));
        let mut shown = vec![self.shown()];
        if let Some(halt) = &reading.halt {
            assert!(
                same(&before, &self.library.domains()) && reading.changes.is_empty() && !reading.is_good()
            );
            shown.push(format!("not applied: {halt}"));
        }
        shown.extend(reading.kept.iter().map(|name| format!("kept {name}")));
        shown.extend(reading.without.iter().map(|name| format!("without {name}")));
        shown.extend(reading.changes);
        shown.extend(reading.problems.iter().map(ToString::to_string));
        let directory = self.directory.path().display().to_string();
        shown
            .iter()
            .map(|line| format!("= {}", line.replace(&directory, ".")).trim_end().to_owned())
            .collect()
    }

    /// Why a reading swapped nothing.
    #[track_caller]
    fn halts(&mut self) -> Option<NotApplied> {
        let before = self.library.domains();
        let reading = self.library.read();
        assert!(same(&before, &self.library.domains()) && reading.changes.is_empty());
        assert!(reading.problems.iter().any(tidegate::rules::Problem::is_error), "it is said where");
        reading.halt
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
/// A text of `#` scenarios in a directory each, of files behind `@` with `|` for each line, and of commands: `read`,
/// perhaps beside open files, `remove` and `outdated`. Returns it with the current answers, and what differs.
fn play(text: &str) -> (String, String) {
    let (mut bench, mut file) = (Bench::new(&[]), ("", String::new()));
    let (mut renewed, mut differing, mut lines) = (String::new(), String::new(), text.lines().peekable());
    while let Some(line) = lines.next() {
        renewed += &format!("{line}\n");
        let words: Vec<_> = line.split(' ').collect();
        let mut found = Vec::new();
        match words.as_slice() {
            ["#", ..] => bench = Bench::new(&[]),
            ["@", name] => file = (name, String::new()),
            ["|", ..] => file.1 += &format!("{}\n", &line[2..]),
            ["read", "beside", open @ ..] => found = bench.read_beside(open),
            ["read"] => found = bench.read_beside(&[]),
            ["remove", name] => bench.remove(name),
            ["outdated"] => found.push(format!("= {}", bench.library.is_outdated())),
            _ => {}
        }
        if line.starts_with(['@', '|']) {
            bench.write(file.0, &file.1);
        }
        let expected: Vec<_> = std::iter::from_fn(|| lines.next_if(|line| line.starts_with('='))).collect();
        if found != expected {
            differing += &format!("{line}\nexpected {expected:#?}\nfound {found:#?}\n");
        }
        renewed.extend(found.into_iter().map(|line| line + "\n"));
    }
    (renewed, differing)
}

#[test]
fn reloads_as_recorded() {
    keep_each("tests/pure/rules", |_, text| play(text));
}

#[test]
fn loads_other_domains_when_the_start_waited_for_the_directory() {
    let bench = Bench::new(&[("a.yaml", API_A), ("n.yaml", "- what is this")]);
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
    assert_eq!(bench.halts(), Some(NotApplied::Unlisted));
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
    assert_eq!(bench.halts(), Some(NotApplied::Unlisted));
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
