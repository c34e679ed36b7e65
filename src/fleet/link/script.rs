//! A Lua script, called by its digest; the text is sent only to servers that do not know it.

/// A script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The name in this code.
    pub name: &'static str,
    /// The Lua text.
    pub text: &'static str,
    /// The SHA-1 of the text, in hex.
    pub sha: String,
}

impl Script {
    /// Makes a script and computes its digest.
    #[must_use]
    pub fn new(name: &'static str, text: &'static str) -> Script {
        Script { name, text, sha: redis::Script::new(text).get_hash().to_owned() }
    }

    pub(super) fn load(&self) -> Vec<u8> {
        redis::cmd("SCRIPT").arg("LOAD").arg(self.text).get_packed_command()
    }

    pub(super) fn call(&self, keys: &[&[u8]], args: &[&[u8]], to: &mut Vec<u8>) {
        let bytes: usize = keys.iter().chain(args).map(|part| part.len() + PART_BYTES).sum();
        let mut command = redis::Cmd::with_capacity(3 + keys.len() + args.len(), bytes);
        command.arg("EVALSHA").arg(&self.sha).arg(keys.len());
        for part in keys.iter().chain(args) {
            command.arg(*part);
        }
        command.write_packed_command(to);
    }
}

/// Framing bytes per argument: its length and two line ends.
const PART_BYTES: usize = 12;
