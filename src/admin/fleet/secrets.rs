//! State of the fleet secrets. No byte of a secret is shown: the first digits of a digest identify it.

use serde_json::{Value, json};

/// The secrets that this host has, uses and needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetSecrets {
    /// The secret in use; `None` if it is not known yet, or there is none.
    pub uses: Option<String>,
    /// Those of the settings, in their order.
    pub has: Vec<String>,
    /// The secret that the other hosts use, if this host lacks it.
    pub lacks: Option<String>,
    /// The next secret of a rotation, and the seconds until then.
    pub turns_to: Option<(String, u64)>,
    /// Number of hosts that do not list this host's first secret first, while it is not in use; and some of them.
    pub lacking: (u32, Vec<String>),
    /// A secret that is no longer needed, and the seconds for which to keep it.
    pub spare: Option<(String, u64)>,
}

impl FleetSecrets {
    /// Returns a warning with its fix.
    pub(in crate::admin) fn warning(&self) -> Option<String> {
        let theirs = self.lacks.as_ref()?;
        let own = self.uses.as_deref().unwrap_or("none");
        Some(format!(
            "this host does not have the fleet secret that is in use ({theirs}; it uses {own}): it shares no budget with the \
             hosts that do; name theirs in `fleet_secret_files` as well"
        ))
    }

    /// Returns the next step of a rotation for the operator, or the one to wait for.
    fn next(&self) -> Option<String> {
        if let Some(warning) = self.warning() {
            return Some(warning);
        }
        if let Some((mark, seconds)) = &self.turns_to {
            return Some(format!("all hosts turn to {mark} in {seconds} s"));
        }
        if let Some((mark, seconds)) = &self.spare {
            return Some(match seconds {
                0 => format!("{mark} may be removed from `fleet_secret_files` everywhere"),
                _ => format!(
                    "{mark} may be removed everywhere in {}: until then what keys have used that nobody asked for since the \
                     turn would be forgotten with it",
                    span(*seconds)
                ),
            });
        }
        let first = self.has.first().filter(|first| Some(*first) != self.uses.as_ref())?;
        Some(match &self.lacking {
            (0, _) => format!("{first} is next, once every host names it first"),
            (lacking, who) => {
                let more = if *lacking as usize > who.len() { ", …" } else { "" };
                let who = who.join(", ");
                format!("{first} is next, once every host names it first: {lacking} do not ({who}{more})")
            }
        })
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "uses": self.uses,
            "has": self.has,
            "lacks": self.lacks,
            "turns_to": self.turns_to.as_ref().map(|(mark, _)| mark),
            "lacking": self.lacking.0,
            "who": self.lacking.1,
            "spare": self.spare.as_ref().map(|(mark, _)| mark),
            "spare_in_s": self.spare.as_ref().map(|(_, seconds)| seconds),
            "next": self.next(),
        })
    }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        7_200..172_800 => format!("{} h", seconds.div_ceil(3_600)),
        _ => format!("{} days", seconds.div_ceil(86_400)),
    }
}
