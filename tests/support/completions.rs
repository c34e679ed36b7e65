//! The completions of `tidegate` in a real bash.

use std::path::Path;
use std::process::Command;

/// Returns the candidates for the last word of a command line, beside the daemon of a socket.
pub(crate) fn bash_completes(line: &str, socket: impl AsRef<Path>) -> Vec<String> {
    const SCRIPT: &str = r#"
        source <(tidegate gen completions bash)
        eval "COMP_WORDS=($1)"
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_TYPE=9
        function=$(complete -p tidegate | sed 's/.*-F \([^ ]*\).*/\1/')
        "$function" tidegate "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        for word in "${COMPREPLY[@]}"; do printf '%s\n' "$word"; done
    "#;
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["-c", SCRIPT, "bash", line]).env("PATH", path).env("TIDEGATE_SOCKET", socket.as_ref());
    let done = bash.output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{line}: {done:?}");
    // The function sets a separator of its own.
    let words = String::from_utf8(done.stdout).unwrap();
    words.split(['\n', '\x0b']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}
